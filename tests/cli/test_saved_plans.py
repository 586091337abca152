"""`cdmpp plan --save-plan` says the command that replays its plan, and this command gives the plan's step time."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from cdmpp import cli

LAYERS = "name,forward_s,backward_s,parameter_bytes,output_bytes,examples\n" + "".join(
    f"block.{i},{1 + i}e-3,2e-3,400000,{1000 * i + 1000},2\n" for i in range(4)
)
NETWORK = """
import torch
from torch import nn

def make_model(batch=4):
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 16 * 16, 10)), (torch.zeros(batch, 3, 16, 16),)
"""
TABLE = ["layers.csv", "--device", "a100", "--link", "links.csv"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layers.csv").write_text(LAYERS)
    (tmp_path / "links.csv").write_text("bytes,seconds\n500,1e-3\n100000,1e-3\n400000,4e-3\n")
    (tmp_path / "net.py").write_text(NETWORK)
    return tmp_path


def asked(capsys, *words):
    """Run a command; return its JSON, and what it says next to it."""
    assert cli.main([*words, "--json"]) == 0
    caught = capsys.readouterr()
    return json.loads(caught.out), caught.err


def replayed(capsys, said):
    """Run the command that was said."""
    (line,) = [line for line in said.splitlines() if ": cdmpp step " in line]
    found, _ = asked(capsys, *shlex.split("step " + line.partition(": cdmpp step ")[2]))
    return found.get("replay", found)


def accumulates(plan):
    return plan["gradient_accumulation_steps"] > 1


def is_piped(plan):
    return plan["degrees"]["pp"] > 1 and plan["model_parallel"][0]["micro_batches"] > 1


def is_hybrid(plan):
    return is_piped(plan) and plan["degrees"]["dp_replicate"] > 1


@pytest.mark.parametrize("wanted", [accumulates, is_piped, is_hybrid])
def test_a_plan_of_measured_layers_is_replayed_as_it_was_judged(folder, capsys, wanted):
    ask = ["plan", *TABLE, "--gpus", "4", "--global-batch", "64", "--strategies", "data,pipeline,data+pipeline"]
    plans = asked(capsys, *ask)[0]["plans"]
    place, one = next((place, one) for place, one in enumerate(plans, 1) if wanted(one["plan"]))
    found, said = asked(capsys, *ask, "--explain", str(place), "--save-plan", "plan.yaml")
    assert one["by"] == "replay" and found["optimized"]["default_iteration_s"] == pytest.approx(one["step_s"], rel=1e-6)
    step = replayed(capsys, said)
    assert step["iteration_s"] == pytest.approx(found["optimized"]["iteration_s"], rel=1e-6)
    assert (step["ranks"], step["global_batch"]) == (4, 64)
    assert wanted(yaml.safe_load(Path("plan.yaml").read_text())), "the explained plan is saved, as --explain says"


@pytest.mark.parametrize("strategies", ["data", "data+spatial", "filter", "data+pipeline"])
def test_a_plan_of_a_network_is_replayed_as_it_was_judged(folder, capsys, strategies):
    pytest.importorskip("torch")
    network = ["net.py:make_model", "--device", "h100", "--link", "pcie4", "--optimizer", "sgd"]
    ask = ["plan", *network, "--gpus", "4", "--global-batch", "32", "--strategies", strategies]
    found, said = asked(capsys, *ask, "--replays", "2", "--save-plan", "plan.yaml")
    step = replayed(capsys, said)
    assert step["iteration_s"] == pytest.approx(found["optimized"]["iteration_s"], rel=1e-6)
    assert found["optimized"]["default_iteration_s"] == pytest.approx(found["plans"][0]["step_s"], rel=1e-6)
    assert step["global_batch"] == 32


def test_the_plan_of_one_way_is_replayed_as_it_was_found(folder, capsys):
    pytest.importorskip("torch")
    ask = ["plan", "net.py:make_model", "--device", "h100", "--link", "ethernet-25g", "--gpus", "2", "--strategy"]
    found, said = asked(capsys, *ask, "ddp", "--accumulate-steps", "4", "--save-plan", "plan.yaml")
    assert accumulates(found["optimized"]["plan"])
    step = replayed(capsys, said)
    assert step["iteration_s"] == pytest.approx(found["optimized"]["iteration_s"], rel=1e-6)
    assert step["global_batch"] == 4 * 2 * found["optimized"]["plan"]["gradient_accumulation_steps"]


def test_a_plan_on_a_grown_cluster_is_replayed_there(folder, capsys):
    ask = ["plan", "layers.csv", "--device", "xeon-icelake", "--cluster", "cpus-ethernet", "--gpus", "8"]
    found, said = asked(capsys, *ask, "--global-batch", "64", "--strategies", "data", "--save-plan", "plan.yaml")
    step = replayed(capsys, said)
    assert step["iteration_s"] == pytest.approx(found["optimized"]["iteration_s"], rel=1e-6)
    assert "8 ranks: switches between them carry as much for all" in " ".join(step["warnings"])


def test_a_batch_is_that_of_a_replica_in_each_accumulation_step(folder, capsys):
    """3 ranks that add up 2 batches of 4 examples have 24; with that number in its place the step is the same."""
    (folder / "plan.yaml").write_text("degrees: {dp_replicate: 3}\ngradient_accumulation_steps: 2\n")
    step = ["step", *TABLE, "--plan", "plan.yaml"]
    one, _ = asked(capsys, *step, "--batch", "4")
    assert one["global_batch"] == 24
    assert asked(capsys, *step, "--global-batch", "24")[0] == one
    assert cli.main([*step, "--batch", "4"]) == 0
    assert "global batch 24 (examples of all ranks in one step)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--ranks", "3", "--global-batch", "64"], "a global batch of 64 does not divide into 3 equal parts"),
        (["--ranks", "2", "--global-batch", "4", "--batch", "2"], "--batch and --global-batch: give the examples of"),
        (["--global-batch", "64"], "--global-batch goes with --ranks"),
    ],
)
def test_a_global_batch_that_cannot_be_is_refused(folder, capsys, options, told):
    assert cli.main(["step", *(TABLE if "--ranks" in options else TABLE[:3]), *options]) == 2
    assert told in capsys.readouterr().err


def test_what_cannot_be_planned_is_refused_before_the_network_is_read(folder, capsys):
    """The file would fail if it was run; a CPU has no model of PyTorch's kernels, and one of compiled programs."""
    pytest.importorskip("torch")
    (folder / "fixed.py").write_text("def make():\n    raise SystemExit('run')\n1 / 0\ndef f():\n    pass\n")
    ask = ["plan", "fixed.py:f", "--link", "pcie4", "--gpus", "4", "--device"]
    assert cli.main([*ask, "h100"]) == 2
    assert "fixed.py:f has no parameter batch, and plans need" in capsys.readouterr().err
    (folder / "plan.yaml").write_text("{degrees: {pp: 2}, model_parallel: [{name: pipeline}]}")
    assert cli.main(["step", *ask[1:4], "--device", "h100", "--plan", "plan.yaml"]) == 2
    assert "fixed.py:f has no parameter batch, and plans need" in capsys.readouterr().err
    cpus = ["plan", "fixed.py:f", "--gpus", "4", "--link", "ethernet-25g", "--device", "xeon-icelake"]
    for more in ([], ["--strategy", "ddp"]):
        (folder / "fixed.py").write_text("1 / 0\ndef f(batch=2):\n    pass\n")
        assert cli.main([*cpus, *more]) == 2
        told = capsys.readouterr().err
        assert "no model trained on xeon-icelake" in told and "Programs of --runtime tvm have a model: " in told
