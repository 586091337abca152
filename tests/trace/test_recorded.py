"""A real job: two ranks of DistributedDataParallel with gloo on this machine, recorded, read and replayed."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cdmpp import cli
from cdmpp.errors import CdmppError
from cdmpp.steps.replay import replay
from cdmpp.steps.transforms.rebucket import gradient_exchanges, rebucket
from cdmpp.trace import record, recorder
from cdmpp.trace.folder import read_job, read_probe, read_recordings

WIDTH, LAYERS = 256, 4


def work(rank: int, store: str, folder: str) -> None:
    """One rank: 14 steps, 4 of them traced; then a probe."""
    from cdmpp.trace import probe

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)])
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(32, WIDTH)
    with record(folder, wait=5, steps=4) as recorder:
        for _ in range(14):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            recorder.step()
    probe(folder, budget_s=0.1)
    dist.destroy_process_group()
    os._exit(0)  # DistributedDataParallel keeps gloo's threads, which may need the interpreter while it ends


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("job")
    torch.multiprocessing.spawn(work, (str(tmp_path_factory.mktemp("store") / "ranks"), str(where)), nprocs=2)
    return where


def test_it_is_read_as_what_it_was(folder):
    job = read_job(folder)
    assert len(job.ranks) == 2 and job.backend == "gloo" and len(job.measured.steps_s) <= 4
    gradients = 4 * LAYERS * (WIDTH * WIDTH + WIDTH)
    for rank in job.ranks:
        assert sum(one.bytes for one in rank.gradients) == gradients and len(rank.gradients) == 2 * LAYERS
        assert {op.phase for op in rank.ops} == {"forward", "backward", "update"}
    buckets = gradient_exchanges(job)
    assert sum(job.exchanges[place].bytes for place in buckets) == gradients and len(buckets) == 2
    assert all(set(job.exchanges[place].before) == {0, 1} for place in buckets)
    assert len(job.measured.probed) >= 2 and 0 <= job.processor_share <= 0.9


def test_a_replay_is_near_what_was_measured(folder):
    """Other work on the machine moves the steps; half to twice is what holds anywhere."""
    job = read_job(folder)
    assert 0.5 < replay(job).step_s / job.measured.step_s < 2
    assert len(rebucket(job, 100 * 2**20).exchanges) == 1


def test_steps_outside_the_window_are_measured(folder):
    recordings = read_recordings(folder)
    assert [len(one.steps_s) for one in recordings] == [14, 14]
    assert all(one.profiled == (5, 10) and 0 < one.event_s < 1e-3 for one in recordings)
    assert all(one.before_s and one.after_s for one in recordings)


def test_time_without_a_processor_is_no_cost_of_an_event(monkeypatch):
    """A busy machine: the thread loses its processor, and only while it is profiled."""

    class Preempted:
        value = torch.zeros(4)

        def add_(self, other):
            if torch.autograd._profiler_enabled():
                time.sleep(1e-3)
            self.value.add_(other)

    monkeypatch.setattr(recorder.torch, "zeros", lambda size: Preempted())
    assert 0 < recorder.event_cost_s(calls=20, tries=10) < 1e-4


def test_the_command_prints_it(folder, capsys):
    assert cli.main(["trace", str(folder), "--what-if", "bandwidth=0.5", "bucket_mb=25", "--diagnose"]) == 0
    out = capsys.readouterr().out
    assert "2 ranks, gloo" in out and "the window of the profiler" in out and "cause" in out
    assert "per step with bandwidth=0.5 bucket_mb=25" in out


def test_a_folder_is_recorded_into_once(folder):
    with pytest.raises(CdmppError, match="rank0.json.gz is there already"), record(folder):
        pass


@pytest.mark.parametrize("share", ["NaN", "-0.5", '"half"'])
def test_a_probe_whose_share_is_none_is_refused(tmp_path, share):
    (tmp_path / "probe.json").write_text(f'{{"rows": [], "processor_share": {share}}}')
    with pytest.raises(CdmppError, match=r"cannot read .*probe\.json"):
        read_probe(tmp_path / "probe.json")
