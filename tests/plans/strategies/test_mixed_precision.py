"""FSDP with parameters, gradients and passes of types of their own, the copies of its buffers, and who refuses it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp import Workload, devices
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.errors import CdmppError
from cdmpp.network.precision import precision_of
from cdmpp.plans.candidates import candidates
from cdmpp.plans.combinations import Combination
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.device_copies import copies_on
from cdmpp.plans.judge import Judge
from cdmpp.plans.lower import lower_work
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.steps.replay import replay
from cdmpp.steps.transforms.copies import Copies
from tests.plans.toy_source import ToySource

RANKS = 4
FREE = fitted(AlphaBeta(0.0, 1e-18), RANKS, "nccl")


def work_of(precision: str):
    workload = Workload("hf:prajjwal1/bert-tiny", precision=precision, optimizer="adamw-fused", mode="training_step")
    return PredictedSource(workload, devices.get("h100")).work(2, ParallelDegrees())


@pytest.fixture(scope="module")
def mixed():
    return work_of("bf16-fsdp")


def test_kept_parts_are_float32_and_what_is_gathered_is_not(mixed):
    half, single, pure = (work_of(name) for name in ("bf16", "fp32", "bf16-fsdp-pure"))
    assert mixed.memory.parameter_bytes == 2 * half.memory.parameter_bytes == single.memory.parameter_bytes
    assert mixed.memory.gradient_bytes == 2 * half.memory.gradient_bytes
    assert mixed.memory.state_bytes == single.memory.state_bytes
    assert mixed.memory.live_bytes == half.memory.live_bytes  # the passes are those of halves
    assert [one.rows for one in mixed.rank.modules] == [one.rows for one in half.rank.modules]
    for own, other in zip(mixed.rank.modules, single.rank.modules, strict=True):
        assert own.trained_rows == other.trained_rows
    assert [one.trained_rows for one in pure.rank.modules] == [one.trained_rows for one in half.rank.modules]
    assert pure.memory == mixed.memory

    def seconds(work, *phases):
        return sum(op.duration_s for op in work.rank.ops if op.phase in phases)

    assert seconds(mixed, "update") == pytest.approx(seconds(single, "update"))
    assert seconds(mixed, "forward", "backward") == pytest.approx(seconds(half, "forward", "backward"))


def test_exchanges_and_memory_of_ranks(mixed):
    plan = Plan(FSDP(), ParallelDegrees(dp_shard=RANKS))
    graph = lower_work(replace(mixed, copies=None), plan, FREE).graph
    sent = {
        kind: sum(one.bytes for one in graph.exchanges if one.kind == kind) for kind in ("all_gather", "reduce_scatter")
    }
    blocks = sum(one.padded_bytes(RANKS) for one in mixed.rank.modules if not one.is_kept)
    root = sum(one.padded_bytes(RANKS) for one in mixed.rank.modules if one.is_kept)
    assert sent["reduce_scatter"] == 2 * (blocks + root)
    assert sent["all_gather"] == 2 * blocks + root
    sizes = {"dp_shard": RANKS}
    own = FSDP().rank_bytes(mixed.memory, mixed.rank.modules, sizes)
    largest = max(one.scattered_bytes(RANKS) for one in mixed.rank.modules)
    whole = max(one.padded_bytes(RANKS) for one in mixed.rank.modules)
    assert own.passing_bytes == root + whole + largest  # gradients of halves, and the float32 buffer of one module


@pytest.mark.parametrize("name", ["ddp", "zero", "ps"])
def test_others_are_refused(mixed, name):
    degrees = ParallelDegrees(dp_replicate=RANKS)
    with pytest.raises(CdmppError, match=f"{name} keeps parameters in the type in which they are computed with"):
        lower_work(mixed, Plan(STRATEGIES[name](), degrees), FREE)
    lower_work(mixed, Plan(DDP(), ParallelDegrees()), FREE)  # one rank exchanges nothing


class Copying(ToySource):
    copies = Copies(2e-10, 3e-10, 0.25)

    def work(self, batch, degrees, strategies=()):
        return replace(super().work(batch, degrees, strategies), copies=self.copies)


def test_copies_take_time_where_links_take_none():
    plan = Plan(FSDP(), ParallelDegrees(dp_shard=RANKS))
    source = Copying(forward_s=1e-2)
    with_, without = (
        replay(lower_work(work, plan, FREE).graph, FREE).step_s
        for work in (source.work(1, plan.degrees), replace(source.work(1, plan.degrees), copies=None))
    )
    graph = lower_work(source.work(1, plan.degrees), plan, FREE).graph
    gathered, scattered = (
        sum(one.bytes for one in graph.exchanges if one.kind == kind) for kind in ("all_gather", "reduce_scatter")
    )
    assert with_ - without == pytest.approx(2e-10 * gathered + 3e-10 * scattered, rel=1e-6)


def test_closed_form_has_the_copies_of_the_replay():
    topology = fitted(AlphaBeta(1e-6, 1e-11), RANKS, "nccl")
    one = Combination("fsdp", FSDP(), (), ("dp_shard",))
    plans = candidates([one], RANKS, 16, {}, can_recompute=False)
    source = Copying(forward_s=1e-3)
    found = Judge(source).closed_form(plans, topology)
    for row in range(len(plans)):
        many = int(plans.micro_batches[row])
        plan = Plan(FSDP(), ParallelDegrees(dp_shard=RANKS), many)
        work = source.work(int(plans.micro_batch[row]), plan.degrees)
        assert found.step_s[row] == pytest.approx(
            replay(lower_work(work, plan, topology).graph, topology).step_s, rel=2e-3
        )


def test_copies_of_a_device():
    a100 = devices.get("a100-80gb")
    found = copies_on(a100, precision_of("bf16-fsdp"))
    assert found is not None
    assert found.gathered_s == pytest.approx(2 / (0.73 * 2039e9))
    assert found.scattered_s == pytest.approx(1.5 / (0.73 * 2039e9))  # two bytes are read, four are written
    assert found.share == pytest.approx(16 / 108)
    assert copies_on(devices.get("xeon-icelake"), precision_of("fp32")) is None
