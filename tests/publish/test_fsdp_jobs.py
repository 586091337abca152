"""FSDP jobs of the benchmarks: parts of a step, accumulated batches that are not replayed, and factors of parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.plans.fsdp_job import BLOCKS, MEMORY, PARTS, PRODUCTS, UPDATE, FSDPJob, with_fused_loss
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
from cdmpp.steps.step_graph import RankGraph

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


def head_of(job: FSDPJob) -> tuple[RankGraph, range]:
    """Return what a rank runs, and the places between the two products of the head."""
    source = source_of(job.model, job.sequence, devices.get(job.device), precision=job.precision)
    rank = source.work(job.batch, ParallelDegrees()).rank
    products = [place for place, op in enumerate(rank.ops) if op.kind == "dense"]
    last = [place for place in products if rank.ops[place].phase == "forward"][-1]
    return rank, range(last + 1, products[products.index(last) + 1])


def test_a_fused_loss_takes_the_seconds_of_the_cast_alone():
    rank, between = head_of(JOB)
    fused = with_fused_loss(rank)
    (cast,) = [place for place in between if fused.ops[place].duration_s > 0]
    assert rank.ops[cast].name.startswith("to") and fused.ops[cast] == rank.ops[cast]
    assert all(one == own for k, (one, own) in enumerate(zip(fused.ops, rank.ops, strict=True)) if k not in between)
    parts, plain = replace(JOB, batch=256, fuses_loss=True).parts(), replace(JOB, batch=256).parts()
    whole, places = head_of(replace(JOB, batch=256))
    saved = sum(
        whole.ops[k].duration_s + whole.ops[k].gap_s for k in places if not whole.ops[k].name.startswith("to_1#")
    )
    cast_back = [
        whole.ops[k] for k in places if whole.ops[k].name.startswith("to_1#") and whole.ops[k].phase != "forward"
    ]
    saved += sum(one.duration_s + one.gap_s for one in cast_back)
    assert plain[MEMORY] - parts[MEMORY] == pytest.approx(saved, rel=1e-6)
    assert plain[PRODUCTS] == parts[PRODUCTS]


def test_a_loss_without_a_cast_of_the_scores_cannot_be_fused():
    rank, _ = head_of(replace(JOB, precision="fp32"))
    with pytest.raises(ValueError, match="expected a cast of the scores"):
        with_fused_loss(rank)


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
