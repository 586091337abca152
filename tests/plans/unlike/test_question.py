"""The search for plans on unlike devices: what it must find, and that its closed form is the replay's."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.errors import CdmppError, InfeasiblePlanError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower
from cdmpp.plans.oracle import ask
from cdmpp.plans.plan import Plan
from cdmpp.plans.question import Question
from cdmpp.plans.sources.unlike import UnlikeSource
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.unlike.arrangement import arrangements
from cdmpp.plans.unlike.cuts import balanced_over, parts_s
from cdmpp.plans.unlike.question import UnlikeQuestion
from cdmpp.plans.unlike.shares import balanced_shares
from cdmpp.plans.unlike.stage_rows import stage_rows
from cdmpp.steps.replay import replay
from tests.plans.toy_source import ToySource

MS = 1e-3
FAST, SLOW = ToySource(8), ToySource(8, forward_s=2e-3)
WIRE = AlphaBeta(1e-5, 1e-10)


def question(counts, sources=None, batch=32, wire=WIRE, **settings) -> UnlikeQuestion:
    source = UnlikeSource(sources or {"fast": FAST, "slow": SLOW})
    ranks = sum(counts.values())
    return UnlikeQuestion(
        source, lambda many: fitted(wire, many, "nccl"), ranks, batch, counts=counts, gpus=frozenset(), **settings
    )


def replayed_s(one: Question, row: int) -> float:
    plan = one.plan(one.judged().plans, row)
    topology = one.topology_of(plan)
    return replay(lower(one.source, plan, topology, one.global_batch, merge=True).graph, topology).step_s


@pytest.mark.parametrize("strategies", [("data",), ("pipeline",), ("data+pipeline",)])
def test_two_names_of_one_device_take_what_one_device_does(strategies):
    wire = AlphaBeta(1e-5, 1e-9)
    like = Question(FAST, lambda many: fitted(wire, many, "nccl"), 4, 32, strategies)
    unlike = question({"a": 2, "b": 2}, {"a": FAST, "b": FAST}, wire=wire, strategies=strategies)
    one = question({"a": 4}, {"a": FAST}, wire=wire, strategies=strategies)
    best = like.judged().costs.step_s[like.judged().order()[0]]
    for other in (unlike, one):
        judged = other.judged()
        assert judged.costs.step_s[judged.order()[0]] == pytest.approx(best, rel=1e-12)
    assert ask(unlike, replays=3).best.step_s == pytest.approx(ask(like, replays=3).best.step_s, rel=1e-12)
    rows = one.judged().order()
    np.testing.assert_allclose(one.judged().costs.step_s[rows], like.judged().costs.step_s[like.judged().order()])


@pytest.mark.parametrize("strategies", [("data",), ("pipeline",), ("data+pipeline",), ("zero1",), ("fsdp",)])
def test_the_closed_form_is_close_to_the_replay(strategies):
    """Stages of unlike length wait less than their closed form says; lists of schedules know one replica each."""
    one = question({"fast": 2, "slow": 2}, strategies=strategies)
    judged, off = one.judged(), {True: [], False: []}
    for row in judged.order()[:16].tolist():
        plan = one.plan(judged.plans, row)
        is_looped = any(each.order.is_looped for each in plan.model_parallel)
        off[is_looped].append(judged.costs.step_s[row] / replayed_s(one, row) - 1)
    assert min(off[False] or [0]) > -0.06 and max(off[False] or [0]) < 0.1
    assert min(off[True] or [0]) > -0.16 and max(off[True] or [0]) < 0.1


@pytest.mark.parametrize("counts", [{"fast": 1, "slow": 3}, {"fast": 3, "slow": 1}])
def test_data_parallel_in_the_open_takes_the_replay_exactly(counts):
    """The slowest replica ends its passes, all exchange, and update."""
    one = question(counts, batch=48, strategies=("data",))
    judged = one.judged()
    rows = [row for row in judged.order().tolist() if not judged.plans.recompute[row]]
    assert any(one.plan(judged.plans, row).shares for row in rows)
    for row in rows:
        plan = one.plan(judged.plans, row)
        plan = replace(plan, strategy=replace(plan.strategy, overlap=False))
        topology = one.topology_of(plan)
        graph = lower(one.source, plan, topology, 48).graph
        each = plan.shares or (plan.gradient_accumulation_steps,) * 4
        examples = 48 // (4 * plan.gradient_accumulation_steps)
        passes_s = [
            many * examples * {"fast": 24, "slow": 48}[on] * MS for many, on in zip(each, plan.devices, strict=True)
        ]
        sizes = [sum(own.bytes for own in bucket) for bucket in plan.strategy.buckets(graph.ranks[0])]
        reduced_s = sum(topology.cost(Collective("all_reduce", size, 4, "nccl"), range(4)).latency_s for size in sizes)
        known_s = max(passes_s) + reduced_s + 0.1 * MS
        assert replay(graph, topology).step_s == pytest.approx(known_s, rel=1e-9)
        assert judged.costs.no_overlap_s[row] == pytest.approx(known_s, rel=1e-9)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("cut", [2, 4, 6])
def test_pipelines_on_unlike_devices_without_exchanges(schedule, cut):
    """The slow stage behind the fast one sets the pace from the first micro-batch on; both by hand."""
    devices, layers = ("fast", "slow"), (cut, 8 - cut)
    plan = Plan(
        degrees=ParallelDegrees(pp=2), devices=devices,
        model_parallel=(Pipeline(schedule, 8, (f"layer.{cut}",)),),
    )  # fmt: skip
    topology = fitted(AlphaBeta(0.0, 1e-15), 2, "nccl")
    source = UnlikeSource({"fast": FAST, "slow": SLOW})
    step_s = replay(lower(source, plan, topology, 8).graph, topology).step_s
    first, second = (count * speed * MS for count, speed in zip(layers, (3, 6), strict=True))
    if second >= first:
        known_s = first + 8 * second  # it waits for one forward pass, and its last gradient is used after it
        assert step_s == pytest.approx(known_s + max(layers) / 8 * 0.1 * MS, rel=1e-2)
    assert max(first, second) * 8 < step_s < first + second + 7 * max(first, second) + 0.1 * MS + 1e-9


def test_the_fast_device_gets_more_layers_and_shares_where_these_are_fastest():
    stages = ask(question({"fast": 1, "slow": 1}, strategies=("pipeline",)), replays=10).best.plan
    (pipeline,) = stages.model_parallel
    assert isinstance(pipeline, Pipeline) and pipeline.cuts is not None
    ends, layers = [0, *(int(one.removeprefix("layer.")) for one in pipeline.cuts), 8], {"fast": 0, "slow": 0}
    for stage, (begin, end) in enumerate(pairwise(ends)):
        layers[stages.devices[pipeline.order.rank_of(stage, 2)]] += end - begin
    assert layers["fast"] > layers["slow"]
    replicas = ask(question({"fast": 1, "slow": 1}, batch=48, strategies=("data",)), replays=10)
    shares = dict(zip(replicas.best.plan.devices, replicas.best.plan.shares, strict=True))
    assert shares["fast"] == 2 * shares["slow"]
    assert replicas.best.step_s < 0.75 * 24 * 48 * MS  # equal shares
    assert "shares" in replicas.best.words and replicas.best.waits_for
    assert any("divide losses by their mean" in line for line in replicas.warnings)


def test_fsdp_has_equal_shares_and_takes_the_slow_device():
    found = ask(question({"fast": 1, "slow": 1}, strategies=("fsdp",)), replays=4)
    assert not any(one.plan.shares for one in found.ranked)
    assert found.best.step_s > 16 * 48 * MS
    assert found.best.waits_for == "rank 1 on slow"


@pytest.mark.parametrize("order", [("fast", "slow"), ("slow", "fast")])
def test_the_order_of_the_devices_changes_nothing(order):
    counts = {name: 2 for name in order}
    sources = {name: {"fast": FAST, "slow": SLOW}[name] for name in order}
    found = ask(question(counts, sources, strategies=("data+pipeline", "data", "pipeline")), replays=6)
    assert found.best.step_s == pytest.approx(
        ask(question({"fast": 2, "slow": 2}, strategies=("data+pipeline", "data", "pipeline")), replays=6).best.step_s
    )


def test_each_device_has_its_own_limit_of_memory():
    """The leanest plan holds 95 MB on one of both."""
    free = question({"fast": 1, "slow": 1}, strategies=("pipeline",))
    judged = free.judged()
    kept = float(np.nanmin(judged.costs.memory_bytes))
    for name in ("fast", "slow"):
        tight = question({"fast": 1, "slow": 1}, strategies=("pipeline",), memory_limits={name: 0.1 * kept})
        with pytest.raises(InfeasiblePlanError, match=f"devices may hold {name} .*lacks .*B on one of them"):
            ask(tight)
    small = {"fast": 1e9, "slow": 0.07e9}
    some = question({"fast": 1, "slow": 1}, strategies=("pipeline",), memory_limits=small).judged()
    assert 0 < np.count_nonzero(some.fits) < np.count_nonzero(judged.fits)
    rejected = {some.why_not(row) for row in np.flatnonzero(~some.fits)}
    assert "needs more memory than one of the devices has" in rejected


@pytest.mark.parametrize("others", [{"slow": 1e9}, {}])
def test_a_device_with_little_memory_gets_fewer_layers_than_its_speed_allows(others):
    """The fast device would get most layers; where it may hold half of what they need, the slow one gets more."""
    free = question({"fast": 1, "slow": 1}, strategies=("pipeline",))
    judged = free.judged()
    plain = [
        row for row in judged.order().tolist() if judged.plans.schedules[judged.plans.schedule[row]].name == "1f1b"
    ]
    best = free.plan(judged.plans, plain[0])
    rows = {one.device: one for one in stage_rows(free, best)}
    limits = {"fast": 0.6 * rows["fast"].memory_bytes, **others}
    tight = question({"fast": 1, "slow": 1}, strategies=("pipeline",), memory_limits=limits)
    found = tight.judged()
    held = []
    for row in found.order().tolist():
        plan = tight.plan(found.plans, row)
        if plan.model_parallel[0].schedule == "1f1b":
            held += [one.memory_bytes / limits.get(one.device, np.inf) for one in stage_rows(tight, plan)]
    assert held and max(held) <= 1 + 1e-6
    same = [
        row for row in found.order().tolist()
        if found.plans.micro_batches[row] == judged.plans.micro_batches[plain[0]] and not found.plans.recompute[row]
        and found.plans.schedules[found.plans.schedule[row]].name == "1f1b"
    ]  # fmt: skip
    other = tight.plan(found.plans, same[0])
    assert _layers(other)["fast"] < _layers(best)["fast"]
    assert found.costs.step_s[same[0]] > judged.costs.step_s[plain[0]]


def _layers(plan: Plan) -> dict[str, int]:
    (pipeline,) = plan.model_parallel
    cut = int(pipeline.cuts[0].removeprefix("layer."))
    return {plan.devices[0]: cut, plan.devices[1]: 8 - cut}


def test_arrangements_use_each_device_as_often_as_it_is_there():
    degrees = ParallelDegrees(pp=2, dp_replicate=2)
    found, is_all = arrangements({"a": 2, "b": 2}, degrees)
    assert is_all
    assert [one.columns for one in found] == [
        (("a", "a"), ("b", "b")), (("a", "b"), ("a", "b")), (("b", "a"), ("b", "a")), (("a", "b"), ("b", "a")),
    ]  # fmt: skip
    assert found[0].of_ranks(degrees) == ("a", "b", "a", "b")
    assert found[1].of_ranks(degrees) == ("a", "a", "b", "b")
    assert arrangements({"a": 3, "b": 1}, ParallelDegrees(pp=1, dp_replicate=2, filter=2)) == ([], True)
    many, is_all = arrangements({"a": 8, "b": 8}, ParallelDegrees(pp=16))
    assert len(many) == 48 and not is_all


def test_shares_end_together_and_none_ends_later_than_it_must():
    assert balanced_shares([1.0, 2.0], [0.0, 0.0], 12) == (8, 4)
    assert balanced_shares([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], 6) == (2, 2, 2)
    assert balanced_shares([1.0, 1.0], [5.0, 0.0], 7) == (1, 6)
    assert balanced_shares([1.0, 100.0], [0.0, 0.0], 8) == (7, 1)
    rng = np.random.default_rng(0)
    for _ in range(20):
        paces, total = rng.uniform(1, 5, 3), int(rng.integers(3, 15))
        best = min(
            max(p * m for p, m in zip(paces, (a, b, total - a - b), strict=True))
            for a in range(1, total - 1) for b in range(1, total - a)
        )  # fmt: skip
        found = balanced_shares(list(paces), [0.0] * 3, total)
        assert sum(found) == total and max(p * m for p, m in zip(paces, found, strict=True)) == pytest.approx(best)


def test_cuts_over_unlike_devices_are_the_best_of_all():
    rng = np.random.default_rng(1)
    for _ in range(20):
        layers = rng.uniform(1, 3, 7)
        until = np.concatenate([[0.0], np.cumsum(layers)])
        speeds = rng.uniform(1, 4, 3)
        length = np.stack([parts_s(until * speed, (None, None)) for speed in speeds])
        cuts = balanced_over(length)
        every = [(a, b) for a in range(1, 6) for b in range(a + 1, 7)]

        def longest(cut, until=until, speeds=speeds):
            ends = pairwise((0, *cut, 7))
            return max(s * (until[j] - until[i]) for s, (i, j) in zip(speeds, ends, strict=True))

        assert longest(cuts) == pytest.approx(min(map(longest, every)))


def test_devices_that_nothing_is_known_of_are_refused():
    with pytest.raises(CdmppError, match="nothing tells what ranks take on other"):
        question({"fast": 1, "other": 1})
    with pytest.raises(CdmppError, match="3 devices for 4 ranks"):
        UnlikeQuestion(UnlikeSource({"fast": FAST}), lambda many: fitted(WIRE, many, "nccl"), 4, 8, counts={"fast": 3})
