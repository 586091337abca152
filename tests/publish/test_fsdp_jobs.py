"""FSDP jobs of the benchmarks: parts of a step, accumulated batches that are not replayed, and factors of parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.plans.fsdp_job import BLOCKS, PARTS, UPDATE, FSDPJob
from benchmarks.plans.language_models import LanguageModel, source_of
from benchmarks.plans.mpt import Judged
from benchmarks.plans.mpt_data import Row
from benchmarks.plans.torchtitan_data import _MODELS, _parameters
from cdmpp import devices
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.distributed_step import replay_plan
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.sustained import SustainedSource
from cdmpp.plans.strategies.fsdp import FSDP

JOB = FSDPJob(LanguageModel("gpt2", 6, 256, 4, 1000, 1024), 128, "a100", "dgx-a100", 8, 4)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CDMPP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_parts_are_those_of_the_replayed_plan():
    job = replace(JOB, batch=256)  # so much that no kernel waits for the host
    found = job.parts()
    device = devices.get(JOB.device)
    source = source_of(JOB.model, JOB.sequence, device, precision="bf16-fsdp", optimizer="adamw-fused")
    plan = Plan(FSDP(scatter_each_batch=True), ParallelDegrees(dp_shard=8))
    replayed = replay_plan(SustainedSource(source, device, JOB.precision), plan, 256, device=device, cluster="dgx-a100")
    assert sum(found[name] for name in PARTS if name != BLOCKS) == pytest.approx(replayed.iteration_s, rel=0.02)
    assert replayed.heaviest is not None
    assert found["bytes"] == replayed.heaviest.peak_bytes


def test_further_batches_add_as_much_as_the_last_that_are_replayed(monkeypatch):
    five = replace(JOB, batches=5)
    short = five._parts()
    monkeypatch.setattr("benchmarks.plans.fsdp_job._FEW", 5)
    whole = five._parts()
    assert short[BLOCKS] == whole[BLOCKS] == 30
    assert short[UPDATE] == pytest.approx(whole[UPDATE])
    for name in PARTS:
        assert short[name] == pytest.approx(whole[name], rel=0.01, abs=1e-5)


def test_factors_of_parts_are_found_from_other_sizes():
    rows = []
    for size, width in (("125m", 128), ("350m", 192), ("760m", 256)):
        for many in (1, 3, 8):
            job = replace(JOB, model=replace(JOB.model, width=width, inner=4 * width), batch=2 * many)
            part_s = job.parts()
            step_s = 1.3 * sum(part_s[name] for name in PARTS if name != BLOCKS) + 1e-4 * part_s[BLOCKS]
            rows.append(Row(size, "a100_40gb", False, job, step_s, 1.0))
    judged = Judged(rows)
    small = np.array([row.size != "760m" for row in rows])
    assert judged.predicted(small, ~small) == pytest.approx(judged.measured_s[~small], rel=0.02)


@pytest.mark.parametrize(
    "name, billions", [("llama3-8b", 8.03), ("llama3-70b", 70.6), ("llama2-13b", 13.02), ("llama3.1-405b", 405.9)]
)
def test_sizes_are_those_of_the_papers(name, billions):
    assert _parameters(_MODELS[name]) / 1e9 == pytest.approx(billions, rel=2e-3)
