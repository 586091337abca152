"""Real runs of stages: checkpoints, stages that die or stand still, what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cdmpp.errors import CdmppError, UsageError
from cdmpp.partition import train
from cdmpp.partition.processes.checkpoint import CHECKPOINT_FILE
from cdmpp.partition.processes.record import load_record
from cdmpp.platform.files import read_json, write_json
from cdmpp.synchrony.processes import namespaces, quota
from cdmpp.synchrony.processes.place import WorkerPlace
from tests.disturbed import best_of
from tests.partition.processes import toy_networks as toy


@pytest.mark.parametrize(("schedule", "optimizer"), [("1f1b", toy.ADAM), ("pipedream", toy.MOMENTUM)])
def test_a_run_that_goes_on_ends_as_one_that_was_not_interrupted(tmp_path, schedule, optimizer):
    given = (toy.with_dropout, [3], schedule, toy.data, toy.MSE, optimizer)
    options = {"micro_batches": 2, "checkpoint_every": 3, "held_out": toy.held_out, "held_out_every": 2}
    whole = train(*given, steps=8, checkpoint_folder=tmp_path / "whole", **options)
    half = train(*given, steps=6, checkpoint_folder=tmp_path / "half", **options)
    with pytest.raises(UsageError, match="resume=True"):
        train(*given, steps=8, checkpoint_folder=tmp_path / "half", **options)
    (tmp_path / "half" / "step-000000099").mkdir()  # of a run that was killed while it wrote
    rest = train(*given, steps=8, checkpoint_folder=tmp_path / "half", resume=True, **options)
    assert half.record.first_step == 0 and rest.record.first_step == 6
    assert all(torch.equal(rest.parameters[name], one) for name, one in whole.parameters.items())
    assert (rest.record.losses, rest.record.held_out) == (whole.record.losses, whole.record.held_out)
    assert [len(one.ends_s) for one in rest.record.stages] == [2, 2]
    for name in ("whole", "half"):
        assert sorted(path.name for path in (tmp_path / name).glob("[a-z]*")) == [CHECKPOINT_FILE, "step-000000008"]
    files = sorted((tmp_path / "whole" / "step-000000008").iterdir())
    assert [path.name for path in files] == ["stage-0.safetensors", "stage-1.safetensors"]
    assert all(one.isfinite().all() for path in files for name, one in load_file(path).items() if name != "random")


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    given = (toy.network, [3], "gpipe", toy.data, toy.MSE, toy.SGD)
    train(*given, steps=2, checkpoint_folder=tmp_path)
    with pytest.raises(UsageError, match=r"is of a run with cuts \[3\], and cuts is \[2\]"):
        train(toy.network, [2], *given[2:], steps=4, checkpoint_folder=tmp_path, checkpoint_every=2, resume=True)
    with pytest.raises(UsageError, match="is of step 2, and steps is 1"):
        train(*given, steps=1, checkpoint_folder=tmp_path, checkpoint_every=2, resume=True)
    path = tmp_path / CHECKPOINT_FILE
    stage = tmp_path / read_json(path)["folder"] / "stage-1.safetensors"
    stage.write_bytes(stage.read_bytes()[:100])
    with pytest.raises(CdmppError, match=r"rank 1 \(stage 1, layers 3 to 5\) failed:\ncannot go on from .*stage-1"):
        train(*given, steps=3, checkpoint_folder=tmp_path, checkpoint_every=2, resume=True)
    write_json(path, [])
    with pytest.raises(CdmppError, match="is no checkpoint"):
        train(*given, steps=3, checkpoint_folder=tmp_path, checkpoint_every=2, resume=True)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("kill", r"^rank 1 \(stage 1, layers 2 to 3\) died: signal SIGKILL"),
        ("exit", r"^rank 1 \(stage 1, layers 2 to 3\) died: exit code 3"),
        ("raise", r"^rank 1 \(stage 1, layers 2 to 3\) failed:\n(.|\n)*no more numbers"),
        ("stand still", r"^rank 1 \(stage 1, layers 2 to 3\) has not answered for 2 s. Others say: rank 0 .*stage 1"),
        ("grow", r"^rank 1 .* failed:\n(.|\n)*"),
        ("two", r"^rank 1 .* failed:\n(.|\n)*"),
    ],
)
def test_a_stage_that_fails_ends_the_run_and_is_named(tmp_path, how, says):
    build, limit_s = partial(toy.odd, how), 2 if how == "stand still" else 100
    with pytest.raises(CdmppError, match=says):
        train(
            build, [2], "1f1b", toy.data, toy.MSE, toy.SGD, steps=9, timeout_s=limit_s, checkpoint_folder=tmp_path,
            checkpoint_every=2,
        )  # fmt: skip
    assert read_json(tmp_path / CHECKPOINT_FILE)["step"] == 4  # the sixth pass is that of the sixth step
    assert sorted(path.name for path in tmp_path.glob("[a-z]*")) == [CHECKPOINT_FILE, "step-000000004"]


def test_an_interrupt_ends_all_processes():
    command = [sys.executable, "-m", "tests.partition.processes.toy_networks"]
    ends = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **ends) as started:
        assert started.stdout.readline() == "starts\n"
        assert started.stdout.readline() == "trains\n"
        os.killpg(started.pid, signal.SIGINT)  # as the terminal does: every process has it
        _, said = started.communicate(timeout=500)
    assert said.count("Traceback") == 1 and said.endswith("KeyboardInterrupt\n")


def test_what_data_and_loss_may_not_return_is_said():
    given = ([2], "1f1b")
    with pytest.raises(UsageError, match=r"data\(0\) has 8 examples: expected a multiple of the 3 micro-batches"):
        train(toy.network, *given, toy.data, toy.MSE, toy.SGD, steps=2, micro_batches=3)
    with pytest.raises(UsageError, match=r"the inputs of data\(3\) are \(6, 3\) of torch.float32, .* \(8, 3\)"):
        train(toy.network, *given, toy.uneven_data, toy.MSE, toy.SGD, steps=5)
    with pytest.raises(UsageError, match=r"rank 1 .*\nthe loss of loss is nan: expected a finite number"):
        train(toy.network, *given, toy.data, toy.nan_loss, toy.SGD, steps=2)


@pytest.mark.netns
@best_of(3)
def test_stages_keep_to_their_rates_and_shares():
    if reason := namespaces.why_not() or quota.why_not():
        pytest.skip(reason)
    places = [WorkerPlace(mbit=80.0), WorkerPlace(mbit=80.0, cpu_share=0.5, core=0)]
    given = (toy.wide, [1], "1f1b", toy.data, toy.MSE, partial(torch.optim.SGD, lr=1e-6))
    found = train(*given, steps=8, places=places)
    # 0.8 MB each way at 80 Mbit/s take 0.16 s; a bucket of tokens lets some go at once
    assert 0.1 < found.record.step_s < 2.0
    free = train(*given, steps=8)
    assert all(torch.equal(one, free.parameters[name]) for name, one in found.parameters.items())
    assert not list(Path("/sys/fs/cgroup").glob(f"**/cdmpp-{os.getpid()}-*"))


@pytest.mark.parametrize("wanted", [True, False])
def test_a_bar_counts_the_steps(monkeypatch, wanted):
    seen = []

    def shown(items, title, total, progress):
        seen.append((title, total, progress))
        for one in items:
            seen.append(one)
            yield one

    monkeypatch.setattr("cdmpp.partition.processes.job.shown", shown)
    train(toy.network, [], "sequential", toy.data, toy.MSE, toy.SGD, steps=3, progress=wanted)
    assert seen == [("steps", 3, wanted), 0, 1, 2]


def test_what_cannot_be_is_refused_before_any_process_starts(monkeypatch):
    monkeypatch.setattr("cdmpp.partition.processes.job.StageCrew", lambda *given: pytest.fail("processes were started"))

    def refused(says, module=toy.network, cuts=(2,), schedule="1f1b", **options):
        with pytest.raises(CdmppError, match=says):
            train(module, list(cuts), schedule, toy.data, toy.MSE, toy.SGD, **{"steps": 2, **options})

    refused("7 cuts make 8 stages, and the network has 6 layers: give at most 5 cuts", toy.network(), range(1, 8))
    refused(r"cuts are \[3, 3\]: expected the first layer of each later stage, rising", cuts=(3, 3))
    refused(r"cuts\[0\] is 0", cuts=(0,))
    refused("cuts are .*each from 1 to 5", toy.network(), (6,))
    refused("cuts are .*each from 1 to 5", cuts=(6,))
    refused("2.weight on stage 1 is the same tensor .* cut elsewhere, as .*--keep-tied", toy.tied, (1,))
    refused("2.weight on stage 1 is the same tensor as 0.weight on stage 0", toy.tied(), (1,))
    refused("the network is 'Linear': expected an nn.Sequential", torch.nn.Linear(2, 2))
    refused("2bw has 1 micro-batches a step on 2 stages", schedule="2bw")
    refused("unknown pipeline schedule .pipes.", schedule="pipes")
    refused("steps is 0", steps=0)
    refused("3 places for 2 stages", places=[WorkerPlace()] * 3)
    refused("module cannot be given to other processes", lambda: None)


def test_tied_layers_may_be_on_one_stage_and_what_a_function_builds_is_checked_too():
    found = train(toy.tied(), [3], "1f1b", toy.data, toy.MSE, toy.SGD, steps=2)
    assert torch.equal(found.parameters["0.weight"], found.parameters["2.weight"])
    with pytest.raises(UsageError, match="2.weight on stage 1 is the same tensor as 0.weight on stage 0"):
        train(toy.tied, [1], "1f1b", toy.data, toy.MSE, toy.SGD, steps=2)


def test_a_file_that_is_no_record_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(CdmppError, match="no record of a run of stages"):
        load_record(tmp_path / "other.json")
