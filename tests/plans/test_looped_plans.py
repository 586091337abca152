"""Plans with several stages a rank, or divided backward passes: lowered, judged, refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.errors import CdmppError
from cdmpp.network.liveness import CallBytes, Lifetimes
from cdmpp.plans.candidates import SCHEDULE
from cdmpp.plans.cut import stages_of
from cdmpp.plans.cut_places import CutPlaces
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.divided_backward import DividedBackward
from cdmpp.plans.lower import lower, lower_work
from cdmpp.plans.plan import Plan
from cdmpp.plans.plan_file import plan_from_dict
from cdmpp.plans.plan_words import words
from cdmpp.plans.question import Question
from cdmpp.plans.rank_memory import parts_of, peak_of
from cdmpp.plans.schedules import LOOPED
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.zero import ZeRO
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.list_times import StageSeconds
from cdmpp.steps.replay import replay
from tests.plans.sources.toy_source import source_of
from tests.plans.toy_pipeline import KB, links, plan
from tests.plans.toy_pipeline import work as without_weights
from tests.plans.toy_source import ToySource

MANY = [("interleaved1f1b", 2), ("interleaved1f1b", 3), ("interleavedzerobubble", 1), ("interleavedzerobubble", 2),
        ("zbvzerobubble", 2), ("dualpipev", 2)]  # fmt: skip


def work(seconds=(1e-3,) * 8, update_s=0.0, sent=KB):
    """Layers whose forward pass, gradients of inputs and gradients of weights take so long each."""
    layers = [Layer(f"layer.{i}", one, 2 * one, 4 * KB, sent, weights_s=one) for i, one in enumerate(seconds)]
    return RankWork(graph_of_layers(layers, update_s=update_s).ranks[0])


def step_s(of, under, wire=None, **how):
    topology = links(under.ranks, wire) if wire else links(under.ranks)
    return replay(lower_work(of, under, topology, **how).graph, topology).step_s


@pytest.mark.parametrize(("name", "count"), MANY)
@pytest.mark.parametrize(("ranks", "many"), [(2, 4), (3, 9), (4, 8)])
def test_the_replay_of_equal_stages_is_the_closed_form(name, count, ranks, many):
    """The first stage has nothing to send back, so that all of its backward pass is gradients of weights."""
    stages = ranks * count
    of, under = work((1e-3,) * stages), plan(ranks, many, name, stages_per_rank=count)
    full, none = np.full((1, stages), 1e-3), np.zeros((1, stages))
    inputs, weights = full.copy(), full.copy()
    inputs[0, 0], weights[0, 0] = 0.0, 2e-3
    given = StageSeconds(full, 2 * full, inputs, weights, none, none, none, none)
    assert step_s(of, under) == pytest.approx(LOOPED[name](count).step_s(given, ranks, np.array([many]))[0], rel=1e-6)


@pytest.mark.parametrize("count", [2, 4])
def test_interleaved_stages_wait_for_a_share_of_one_to_p_minus_1_over_v_m(count):
    ranks, many = 4, 8
    alone_s = many * count * ranks * 3e-3
    expected = alone_s / ranks * (1 + (ranks - 1) / (count * many))
    of = without_weights((1e-3,) * (ranks * count))
    assert step_s(of, plan(ranks, many, "interleaved1f1b", stages_per_rank=count)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("name", "count"), MANY)
def test_messages_go_between_ranks_as_often_as_stages_do(name, count):
    """Each micro-batch each way over each cut; at the end of a V two stages are neighbours on a rank."""
    ranks, many = 4, 8
    made = lower_work(work((1e-3,) * 12), plan(ranks, many, name, stages_per_rank=count), links(ranks)).graph
    cuts = ranks * count - 1 - (name in ("zbvzerobubble", "dualpipev"))
    assert Counter(one.kind for one in made.exchanges) == {"send_recv": 2 * many * cuts}


@pytest.mark.parametrize(("name", "count"), MANY)
@pytest.mark.parametrize("steps", [1, 2])
def test_folded_ranks_and_merged_ops_take_as_long_as_all_of_them(name, count, steps):
    base = plan(2, 4, name, stages_per_rank=count)
    under = replace(base, strategy=FSDP(), degrees=replace(base.degrees, dp_shard=4), gradient_accumulation_steps=steps)
    of, wire = work((1e-3, 2e-3, 1e-3, 1e-3, 3e-3, 1e-3), update_s=1e-3), AlphaBeta(1e-5, 1e-8)
    expected = step_s(of, under, wire, fold=False)
    assert step_s(of, under, wire) == pytest.approx(expected, rel=1e-9)
    assert step_s(of, under, wire, merge=True) == pytest.approx(expected, rel=1e-9)


def test_a_rank_waits_for_the_gradients_of_each_stage_as_that_ends():
    """All-reduces of 40 ms, one a stage and in turn: each rank stands still for two of its own."""
    base = plan(2, 4, "interleaved1f1b", stages_per_rank=2, dp=2)
    of, wire = work((1e-3,) * 4, sent=1), AlphaBeta(0.0, 1e-5)
    made = lower_work(of, base, links(4, wire))
    reduced = [one for one in made.graph.exchanges if one.kind == "all_reduce"]
    assert sorted((min(one.after), one.bytes) for one in reduced) == [(0, 4 * KB)] * 2 + [(1, 4 * KB)] * 2
    for one in reduced:
        for rank, place in one.after.items():
            ops = made.graph.ranks[rank].ops
            (averaged,) = (at for at in one.before[rank] if at < len(ops))
            assert ops[averaged].name.endswith("averaged") and averaged > place
    found = replay(made.graph, links(4, wire)).step_s
    assert found > step_s(of, plan(2, 4, "interleaved1f1b", stages_per_rank=2)) + 2 * 40e-3


class Divided(ToySource):
    """Half of the backward pass makes gradients of weights."""

    def work(self, batch, degrees, strategies=()):
        work = super().work(batch, degrees)
        ops = list(work.rank.ops)
        for place, op in enumerate(ops):
            if op.name.endswith(" gradient"):
                half = ops[place - 1].duration_s / 2
                ops[place - 1 : place + 1] = replace(ops[place - 1], duration_s=half), replace(op, duration_s=half)
        return replace(work, rank=replace(work.rank, ops=tuple(ops)))


@pytest.mark.parametrize("name", ["pipeline", "fsdp+pipeline", "data+pipeline"])
def test_the_closed_form_is_near_the_replay_and_memory_is_the_same(name):
    ranks = 4 if name == "pipeline" else 8
    question = Question(Divided(16), lambda count: fitted(AlphaBeta(1e-5, 1e-10), count, "nccl"), ranks, 32, (name,))
    judged, tried = question.judged(), set()
    for row in np.flatnonzero(judged.fits & (judged.plans.recompute == 0)):
        schedule = judged.plans.schedules[judged.plans.schedule[row]]
        under = question.plan(judged.plans, int(row))
        if not schedule.is_looped or under.degrees.pp != 4:
            continue
        tried.add((schedule.name, schedule.stages_per_rank))
        topology = question.topology(ranks)
        lowered = lower(question.source, under, topology, 32)
        assert judged.costs.step_s[row] == pytest.approx(replay(lowered.graph, topology).step_s, rel=0.03)
        one = question.source.work(int(judged.plans.micro_batch[row]), under.degrees)
        assert judged.costs.memory_bytes[row] == pytest.approx(peak_of(one, under, lowered, False), rel=1e-9)
    dividing = {("interleavedzerobubble", 1), ("interleavedzerobubble", 2), ("zbvzerobubble", 2), ("dualpipev", 2)}
    expected = {("interleaved1f1b", 2), ("interleaved1f1b", 4)} | (set() if name == "data+pipeline" else dividing)
    assert tried >= expected


@pytest.mark.parametrize(("name", "count"), MANY)
def test_a_rank_holds_what_its_timeline_holds(name, count):
    """Op by op, of all stages of a rank; the closed form counts all gradients from the start.

    Where backward passes are divided autograd keeps the graph, so that more stays than ops read.
    """
    ranks, many, source = 2, 6, Divided(12, parameters=40_000, output=500_000)
    under = plan(ranks, many, name, stages_per_rank=count, return_outputs=False)
    one = source.work(2, under.degrees)
    lowered = lower_work(one, under, links(ranks))
    for rank, parts in zip(lowered.graph.ranks, parts_of(one, under, lowered, False), strict=True):
        passes = [place for place, op in enumerate(rank.ops) if op.phase != "update"]
        runs = [(place, rank.ops[place].phase == "backward") for place in passes]
        during, _ = Lifetimes.of(rank.ops, runs).alive(CallBytes.of(rank.ops))
        size = sum(gradient.bytes for gradient in rank.gradients)
        most = int(during.max())
        assert parts.activations >= most - size
        if name == "interleaved1f1b":
            assert parts.activations <= most + 2 * 500_000 * 2  # one result that its last reader frees early


def test_a_v_holds_both_ends_of_the_model_on_the_first_rank():
    under = plan(2, 4, "zbvzerobubble")
    source = Divided(4)
    lowered = lower_work(source.work(2, under.degrees), under, links(2))
    names = [[one.name for one in rank.gradients] for rank in lowered.graph.ranks]
    assert names == [["layer.0", "layer.3"], ["layer.1", "layer.2"]]
    looped = lower_work(source.work(2, under.degrees), plan(2, 4, "interleaved1f1b"), links(2))
    assert [[one.name for one in rank.gradients] for rank in looped.graph.ranks] == [
        ["layer.0", "layer.2"], ["layer.1", "layer.3"],
    ]  # fmt: skip


class Normed(torch.nn.Module):
    """A linear layer, a norm and a linear layer."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


def test_products_and_norms_are_divided_as_pytorch_divides_them():
    """The second stage: the norm and the last layer. Its norm works in both parts, each product in one."""
    rank = source_of(Normed(), torch.randn(4, 8)).work(4, ParallelDegrees()).rank
    places = CutPlaces(rank)
    first, second = stages_of(rank, (places.named("norm"),))
    divided = DividedBackward(second)
    ops, begin = divided.rank.ops, divided.first_weights
    inputs = [op for op in ops[:begin] if op.phase == "backward"]
    weights = [op for op in ops[begin:] if op.phase == "backward"]
    assert [op.kind for op in weights] == ["dense", "reduce", "norm"]  # weight and bias of the layer, both of the norm
    assert [op.kind for op in inputs if op.kind in ("dense", "norm")] == ["dense", "norm"]
    whole_s = sum(op.duration_s for op in second.rank.ops if op.phase == "backward")
    assert sum(op.duration_s for op in inputs + weights) == pytest.approx(whole_s)
    (norm,) = (op for op in second.rank.ops if op.phase == "backward" and op.kind == "norm")
    read = sum(second.rank.ops[one].output_bytes for one in norm.inputs)
    written = norm.output_bytes - 2 * 16 * 4
    assert weights[-1].duration_s == pytest.approx(norm.duration_s * read / (2 * read + written))
    assert weights[-1].output_bytes == 2 * 16 * 4
    pending = [second.rank.ops[place] for place in divided.pending]
    assert sum(op.output_bytes for op in pending) == (4 * 4 + 4 * 16) * 4  # gradients of both results
    alone = DividedBackward(first)
    assert not first.returned and alone.first_weights == sum(op.phase == "forward" for op in first.rank.ops)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "interleaved1f1b", "overlap": True}, "interleaved1f1b receives ahead as it is"),
        ({"schedule": "1f1b", "stages_per_rank": 2}, "1f1b has one stage a rank: leave it out, or take one of dualp"),
        ({"schedule": "zbvzerobubble", "stages_per_rank": 3}, "expected a whole number from 2 to 2"),
        ({"schedule": "interleaved", "micro_batches": 4}, "pipeline.schedule is 'interleaved'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(CdmppError, match=message):
        Pipeline(**settings)


def test_plans_that_cannot_be_are_refused_with_the_rule():
    with pytest.raises(CdmppError, match="PyTorch wants a multiple of the 2 rounds"):
        plan(4, 11, "interleaved1f1b")
    with pytest.raises(CdmppError, match="as many micro-batches as stages: give 8 or more"):
        plan(4, 6, "dualpipev")
    with pytest.raises(CdmppError, match="ddp averages gradients in hooks of DistributedDataParallel"):
        plan(2, 4, "interleavedzerobubble", dp=2)
    base = plan(2, 4, "zbvzerobubble")
    with pytest.raises(CdmppError, match="zero averages gradients in hooks"):
        replace(base, strategy=ZeRO(), degrees=replace(base.degrees, dp_replicate=2))
    with pytest.raises(CdmppError, match="PyTorch runs a recomputed block again for its inputs, and once more for"):
        replace(base, recompute=("layer.0",))
    with pytest.raises(CdmppError, match="16 stages of a model that can be cut at 7 places: expected at most 8"):
        lower_work(work(), plan(4, 8, "interleaved1f1b", stages_per_rank=4), links(4))
    with pytest.raises(CdmppError, match="column weights_s"):
        lower_work(without_weights((1e-3,) * 4), plan(2, 4, "zbvzerobubble"), links(2))
    with pytest.raises(CdmppError, match="has 1 names for 4 stages: expected 3"):
        plan(2, 4, "interleaved1f1b", cuts=("layer.1",))


def test_candidates_keep_the_reason():
    question = Question(
        Divided(8), lambda count: fitted(AlphaBeta(1e-5, 1e-10), count, "nccl"), 8, 16, ("pipeline", "data+pipeline")
    )
    judged = question.judged()
    reasons = {judged.plans.why_not(int(row)) for row in np.flatnonzero(judged.plans.reason == SCHEDULE)}
    for text in (
        "interleaved1f1b with 2 stages on each of 8 ranks: this network allows 8 stages",
        "zbvzerobubble divides backward passes, and ddp averages gradients in hooks",
        "dualpipev has 4 micro-batches on 4 ranks",
        "interleavedzerobubble divides backward passes, and modules are recomputed",
    ):
        assert any(one.startswith(text) for one in reasons), text


def test_a_plan_file_and_the_lines_of_pytorch_say_the_stages_of_a_rank():
    under = plan(2, 4, "interleavedzerobubble", stages_per_rank=3)
    assert plan_from_dict(under.to_dict()) == under
    read = plan_from_dict({"degrees": {"pp": 4}, "model_parallel": [{"name": "pipeline", "schedule": "zbvzerobubble"}]})
    assert read == Plan(degrees=ParallelDegrees(pp=4), model_parallel=(Pipeline("zbvzerobubble"),))
    assert words(under, "pipeline", 2).endswith("4 micro-batches of 2, interleavedzerobubble, 3 stages a rank")
    lines = Pipeline("dualpipev", 8).torch_lines()
    assert "for stage in (rank, pipe.num_stages - 1 - rank)" in lines[1]
    assert lines[1].startswith("schedule = ScheduleDualPipeV([pipe.build_stage(stage, device, group)")
    assert "stages_per_rank" not in str(Pipeline("1f1b").torch_lines())
