"""Lowered plans: the equalities that tie pipelines to closed forms, to one device, and to all ranks."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.errors import CdmppError
from cdmpp.plans.cut_places import CutPlaces
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower, lower_work
from cdmpp.plans.placement import micro_batch_of
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.sources.source import RankWork, StepSource
from cdmpp.plans.sources.trace import TraceSource
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.replay import replay
from tests.plans.toy_pipeline import KB, links, plan, work
from tests.steps.toy_traced import job

SLOW = AlphaBeta(0.0, 1e-6)
"""1 kB takes 1 ms."""


def step_s(of, under, wire=None, **how):
    topology = links(under.ranks, wire) if wire else links(under.ranks)
    return replay(lower_work(of, under, topology, **how).graph, topology).step_s


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("stages", "count"), [(2, 2), (4, 8), (8, 9), (4, 32)])
def test_equal_stages_take_the_closed_form(schedule, overlap, stages, count):
    """(m + p - 1) / m of what all stages take together, over p; sends take nothing."""
    of = work((1e-3,) * 8)
    whole_s = count * 8 * 3e-3
    expected = (count + stages - 1) / count * whole_s / stages
    assert step_s(of, plan(stages, count, schedule, overlap=overlap)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero"])
@pytest.mark.parametrize("steps", [1, 3])
def test_merged_ops_of_replicas_take_as_long_as_single_ones(strategy, steps):
    under = plan_on(4, strategy, gradient_accumulation_steps=steps)
    of, wire = work((1e-3, 2e-3, 1e-3, 1e-3, 3e-3), update_s=1e-3), AlphaBeta(1e-4, 1e-7)
    assert step_s(of, under, wire, merge=True) == pytest.approx(step_s(of, under, wire, fold=False), rel=1e-9)


@pytest.mark.parametrize("count", [1, 8])
def test_one_stage_takes_what_one_device_takes(count):
    of = work((1e-3, 2e-3, 5e-4), update_s=1e-3)
    assert step_s(of, plan(1, count)) == pytest.approx(count * 3 * 3.5e-3 + 1e-3)
    assert step_s(of, plan_on(1)) == pytest.approx(3 * 3.5e-3 + 1e-3)
    assert step_s(of, plan_on(1, gradient_accumulation_steps=5)) == pytest.approx(5 * 3 * 3.5e-3 + 1e-3)


def test_1f1b_sends_48_messages_for_4_ranks_and_8_micro_batches():
    """As PyTorch counts them from the second step on: one each way, micro-batch and pair of neighbours."""
    for schedule in ("1f1b", "gpipe"):
        made = lower_work(work(), plan(4, 8, schedule), links(4)).graph.exchanges
        assert Counter(one.kind for one in made) == {"send_recv": 48}
        assert {one.bytes for one in made} == {KB}
        assert Counter(one.group for one in made) == dict.fromkeys(("0->1", "1->2", "2->3", "1->0", "2->1", "3->2"), 8)


@pytest.mark.parametrize(("overlap", "expected_s"), [(False, 13e-3), (True, 11e-3)])
def test_gpipe_on_two_stages_by_hand(overlap, expected_s):
    """f, b and a message take 1, 2 and 1 ms, 2 micro-batches. Messages leave stage 0 at 1 and 2.

    With overlap they are there at 2 and 3: F0 2-3, F1 3-4, B0 4-6, B1 6-8 on stage 1; gradients come at 7 and 9, and
    stage 0 runs 7-9 and 9-11. Without, F1 is received only after F0, 3-4: F1 4-5, B0 5-7, B1 7-9; stage 0 gets the
    first gradient at 8, runs 8-10, gets the other 10-11, and runs 11-13.
    """
    assert step_s(work((1e-3, 1e-3)), plan(2, 2, "gpipe", overlap=overlap), SLOW) == pytest.approx(expected_s)


@pytest.mark.parametrize("overlap", [False, True])
def test_1f1b_on_two_stages_by_hand(overlap):
    """The same with 3 micro-batches. Stage 0 runs F0 0-1 and F1 1-2; stage 1 gets F0 at 2: F0 2-3, B0 3-5.

    Without overlap F1 is received as the gradient of B0 leaves, 5-6: stage 1 F1 6-7, B1 7-9; stage 0 B0 6-8, F2 8-9,
    and sends it 9-10 as it gets the gradient of B1: stage 1 F2 10-11, B2 11-13; stage 0 B1 10-12, and B2 14-16.
    With overlap F1 is there at 3: stage 1 F1 5-6, B1 6-8; stage 0 B0 6-8, F2 8-9, B1 9-11; stage 1 F2 10-11, B2 11-13;
    stage 0 B2 14-16: the last three messages are in the way all the same.
    """
    assert step_s(work((1e-3, 1e-3)), plan(2, 3, overlap=overlap), SLOW) == pytest.approx(16e-3)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(("schedule", "steps"), [("gpipe", 1), ("1f1b", 1), ("1f1b", 2)])
def test_folded_ranks_and_merged_ops_take_as_long_as_all_of_them(strategy, schedule, steps):
    degrees = {"ddp": "dp_replicate", "fsdp": "dp_shard"}[strategy]
    base = plan(4, 6, schedule)
    under = replace(
        base, strategy=FSDP() if strategy == "fsdp" else base.strategy,
        degrees=replace(base.degrees, **{degrees: 8}),
    )  # fmt: skip
    under = replace(under, gradient_accumulation_steps=steps)
    of, wire = work((1e-3, 2e-3, 1e-3, 1e-3, 3e-3), update_s=1e-3), AlphaBeta(1e-5, 1e-8)
    assert step_s(of, under, wire) == pytest.approx(step_s(of, under, wire, fold=False), rel=1e-9)
    assert step_s(of, under, wire) == pytest.approx(step_s(of, under, wire, merge=True), rel=1e-9)
    folded = lower_work(of, under, links(32, wire))
    assert len(folded.graph.ranks) == 4
    assert folded.places == tuple(rank // 8 for rank in range(32))


def test_replicas_exchange_gradients_of_their_stage_after_the_last_micro_batch():
    made = lower_work(work(), plan(2, 3, dp=4), links(8))
    reduced = [one for one in made.graph.exchanges if one.kind == "all_reduce"]
    assert [(sorted(one.after), one.members, one.bytes) for one in reduced] == [
        ([0], (0, 1, 2, 3), 8 * KB), ([1], (4, 5, 6, 7), 8 * KB),
    ]  # fmt: skip
    for one in reduced:
        ((rank, place),) = one.after.items()
        assert made.graph.ranks[rank].ops[place].name == f"layer.{2 * rank} gradient, micro-batch 2"


@pytest.mark.parametrize(("overlap", "waits"), [(True, True), (False, False)])
@pytest.mark.parametrize("fold", [False, True])
def test_the_last_gradient_of_a_stage_waits_for_the_buckets_of_ddp(overlap, waits, fold):
    """DistributedDataParallel ends a backward pass when its gradients are there: those of stages come in turns.

    Two stages, forward 1 ms and backward 2, two micro-batches, GPipe: forward passes end at 3 ms, backward passes of
    stage 1 at 7, those of stage 0 at 9. An all-reduce of 4 kB takes 4 ms.
    """
    under = plan(2, 2, "gpipe", dp=2)
    under = replace(under, strategy=replace(under.strategy, overlap=overlap))
    topology = fitted(AlphaBeta(0.0, 1e-6), 4, "nccl")
    lowered = lower_work(work((1e-3, 1e-3), sent=1), under, topology, fold=fold)
    expected = 9e-3 + (2 * 4e-3 if waits else 4e-3)
    assert replay(lowered.graph, topology).step_s == pytest.approx(expected, abs=2e-5)


def test_accumulated_batches_follow_each_other():
    under = replace(plan(2, 2), gradient_accumulation_steps=3)
    of = work((1e-3, 1e-3))
    made = lower_work(of, under, links(2))
    assert Counter(one.kind for one in made.graph.exchanges) == {"send_recv": 2 * 2 * 3}
    assert step_s(of, under) == pytest.approx(3 * step_s(of, plan(2, 2)), rel=1e-6)


def test_uneven_cuts_are_those_that_are_given():
    under = plan(2, 4, cuts=("layer.1",))
    made = lower_work(work((1e-3,) * 4), under, links(2))
    assert [len(stage.rank.gradients) for stage in made.stages] == [1, 3]
    assert step_s(work((1e-3,) * 4), under) > step_s(work((1e-3,) * 4), plan(2, 4))
    for cuts, message in (
        (("layer.9",), r"names 'layer.9', no module .* and no op .* layer.1, layer.2, layer.3 \(nearest first\)"),
        (("layer.0",), "'layer.0', with which the first stage begins; later stages can begin with layer.1, "),
    ):
        with pytest.raises(CdmppError, match=message):
            lower_work(work(), plan(2, 4, cuts=cuts), links(2))
    order = "names layer.3 before layer.1, .*: expected layer.1, layer.3, each at a place of its own"
    with pytest.raises(CdmppError, match=order):
        lower_work(work(), plan(3, 4, cuts=("layer.3", "layer.1")), links(3))
    with pytest.raises(CdmppError, match="has 1 names for 3 stages: expected 2"):
        plan(3, 4, cuts=("layer.1",))


def test_more_stages_than_layers_are_refused():
    with pytest.raises(CdmppError, match="5 stages of a model that can be cut at 3 places: expected at most 4 stages"):
        lower_work(work(), plan(5, 8), links(5))


def test_ops_are_named_by_their_micro_batch():
    (first, _) = lower_work(work((1e-3, 1e-3)), plan(2, 2), links(2)).graph.ranks
    assert [op.name for op in first.ops] == [
        "layer.0, micro-batch 0", "layer.0, micro-batch 1",
        "layer.0 backward, micro-batch 0", "layer.0 gradient, micro-batch 0",
        "layer.0 backward, micro-batch 1", "layer.0 gradient, micro-batch 1",
    ]  # fmt: skip


class Known(StepSource):
    """Knows what one rank does at one micro-batch."""

    def work(self, batch, degrees, strategies=()):
        assert batch == 2
        return work()

    def limits(self):
        return {"pp": 4}


def test_a_global_batch_is_divided_over_replicas_and_micro_batches():
    under = replace(plan(2, 4, dp=3), gradient_accumulation_steps=2)
    assert micro_batch_of(under, 48) == 2
    assert len(lower(Known(), under, links(6), 48).graph.ranks) == 2
    with pytest.raises(CdmppError, match="a global batch of 40 does not divide into 24 equal parts: 3 replicas x 2"):
        lower(Known(), under, links(6), 40)


def test_pytorch_refuses_few_micro_batches_which_is_said():
    assert (
        "PyTorch refuses 1f1b with 2 micro-batches on 4 stages" in lower_work(work(), plan(4, 2), links(4)).warnings[0]
    )


@pytest.mark.parametrize(
    ("schedule", "count", "fails"),
    [("gpipe", 4, True), ("1f1b", 2, True), ("1f1b", 3, False), ("gpipe", 1, False)],
)
def test_replicas_that_pytorch_cannot_pipeline_are_said(schedule, count, fails):
    """torch 2.13 raises there in the second step, when DDP rebuilds its buckets."""
    warnings = lower_work(work(), plan(2, count, schedule, dp=2), links(4)).warnings
    assert any("DistributedDataParallel fails in the second step" in one for one in warnings) is fails
    assert "DistributedDataParallel" not in "".join(lower_work(work(), plan(2, count, schedule), links(2)).warnings)


def test_two_strategies_of_one_kind_are_refused():
    with pytest.raises(CdmppError, match="two strategies"):
        Plan(degrees=plan().degrees, model_parallel=(Pipeline(), Pipeline()))


def test_a_trace_is_lowered_without_being_cut():
    """A trace does not say which op of the backward pass belongs to which of the forward pass, and need not here."""
    of = TraceSource(job(), 8)
    traced = of.work(8, ParallelDegrees()).rank
    expected = sum(op.duration_s for op in traced.ops)
    assert replay(lower(of, plan_on(1), links(1), 8).graph, links(1)).step_s == pytest.approx(expected)
    lowered = lower(of, plan_on(2), links(2), 16)
    assert sum(one.bytes for one in lowered.graph.exchanges) == traced.gradient_bytes
    with pytest.raises(CdmppError, match="a trace does not tell where its model can be cut into 2 stages"):
        lower(of, plan(2, 2), links(2), 16)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_overlap_is_never_slower_whatever_the_layers_send(schedule, seed):
    """Stages are chosen by layers and messages whether or not these are hidden: the same for both."""
    draw = random.Random(seed)
    layers = [
        Layer(f"layer.{i}", one := draw.uniform(1e-4, 1e-3), 2 * one, 4 * KB, draw.choice([KB // 10, KB, 4 * KB]))
        for i in range(12)
    ]
    of = RankWork(graph_of_layers(layers).ranks[0])
    taken = [step_s(of, plan(4, 8, schedule, overlap=overlap), SLOW) for overlap in (True, False)]
    assert taken[0] <= taken[1] * (1 + 1e-9)


def test_cuts_avoid_large_messages_with_overlap_too():
    """Layers 2 and 3 are the even cut, and what passes between them takes as long as six layers."""
    layers = [Layer(f"layer.{i}", 1e-3, 2e-3, 4 * KB, 9 * KB if i == 1 else KB) for i in range(4)]
    rank = graph_of_layers(layers).ranks[0]
    chosen = {
        overlap: Pipeline("1f1b", 8, overlap=overlap).cut_places(CutPlaces(rank), 2, lambda sizes: sizes * 1e-6)
        for overlap in (True, False)
    }
    assert chosen[True] == chosen[False] != (2,)
