"""The planner beside brute force, on random graphs with messages, limits of memory and devices that differ."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import DataError, InfeasiblePlanError, UsageError
from cdmpp.partition.chain import Chain, Part, merged
from cdmpp.partition.devices import StageDevice
from cdmpp.partition.downsets import every_downset
from cdmpp.partition.dynamic import DynamicSearch
from cdmpp.partition.front_bound import front_bound_s
from cdmpp.partition.graph import Layer, Parameter, PartitionGraph
from cdmpp.partition.integer import integer_search
from cdmpp.partition.problem import PartitionProblem
from cdmpp.partition.question import PartitionQuestion, answer
from cdmpp.partition.simple import equal_layers, greedy, in_order
from cdmpp.partition.solve import DYNAMIC, INTEGER, solve
from cdmpp.plans.balance import balanced
from cdmpp.plans.schedules import SCHEDULES
from tests.partition.brute_force import best_s, least_missing, random_problem

FREE = AlphaBeta(0.0, 0.0)
UNLIMITED_S = 86400.0
"""Integer programming ends by its proof: how busy the machine is does not matter."""


@pytest.mark.parametrize("seeds", [range(start, start + 20) for start in range(0, 200, 20)])
def test_as_fast_as_brute_force(seeds):
    for seed in seeds:
        problem = random_problem(seed)
        best = best_s(problem)
        if math.isinf(best):
            with pytest.raises(InfeasiblePlanError, match="are missing"):
                solve(problem)
            search = DynamicSearch(problem, every_downset(problem.graph, 1000))
            assert search.leanest().missing_bytes == pytest.approx(least_missing(problem))
            continue
        found = solve(problem)
        assert found.method == DYNAMIC and found.is_proven and found.chain.fits
        assert found.chain.slowest_s == pytest.approx(best, rel=1e-9)
        assert sorted(place for one in found.chain.parts for place in one.layers) == [*range(problem.graph.count)]


@pytest.mark.parametrize("seeds", [range(start, start + 10) for start in range(200, 240, 10)])
def test_integer_programming_is_as_fast_and_its_bound_holds(seeds):
    for seed in seeds:
        problem = random_problem(seed, replicas=False)
        best = best_s(problem)
        for most_s in (math.inf, 1.1 * best):
            chain, bound_s, *_ = integer_search(problem, most_s, UNLIMITED_S)
            assert (math.inf if chain is None else chain.slowest_s) == pytest.approx(best, rel=1e-5)
            assert bound_s <= best * (1 + 1e-6)
            assert math.isinf(best) or bound_s >= best * (1 - 1e-5)


@pytest.mark.parametrize("seeds", [range(start, start + 20) for start in range(300, 360, 20)])
def test_a_bound_from_the_first_stages_holds(seeds):
    met = 0
    for seed in seeds:
        problem = random_problem(seed, replicas=False)
        problem = replace(problem, devices=(problem.devices[0],) * len(problem.devices))
        if math.isfinite(best := best_s(problem)):
            for known_s in (best, 1.3 * best):
                bound_s = front_bound_s(problem, known_s, UNLIMITED_S)
                assert bound_s <= best * (1 + 1e-6)
            met += bound_s >= best * (1 - 1e-6)
    assert met


def test_orders_of_devices_that_differ_are_counted_and_left_out_with_a_word():
    draw = np.random.default_rng(0)
    graph = PartitionGraph(tuple(Layer(str(i), (i - 1,) if i else (), 10) for i in range(6)))
    devices = tuple(StageDevice(f"d{i}", draw.random(6), draw.random(6), FREE) for i in range(5))
    searched = integer_search(PartitionProblem(graph, devices), math.inf, 5.0)
    assert (searched.orders, searched.all_orders, searched.bound_s) == (24, 120, 0.0)
    assert searched.chain is not None
    equal = integer_search(PartitionProblem(graph, devices[:1] * 5 + devices[1:2]), math.inf, UNLIMITED_S)
    assert (equal.orders, equal.all_orders) == (6, 6) and equal.bound_s == pytest.approx(equal.chain.slowest_s)
    question = PartitionQuestion(graph, devices, 1, schedules=(SCHEDULES["1f1b"](),))
    found = answer(question)
    one = replace(found.best, partition=replace(found.best.partition, orders=(24, 120)))
    told = replace(found, ranked=(one,)).warnings
    assert "cuts under 1f1b are the best of 24 of 120 orders of the devices" in told


@pytest.mark.parametrize("method", [DYNAMIC, INTEGER])
def test_the_last_stage_holds_two_versions_and_an_only_stage_one(method):
    """One stage holds 2 x 155 bytes, the last of two 3 x 100: a version and gradients, and a second version."""
    graph = PartitionGraph(
        (Layer("a", (), 1), Layer("b", (0,), 1)), (Parameter("u", 55, (0,)), Parameter("v", 100, (1,)))
    )
    for limit, parts in ((290.0, 0), (305.0, 2), (340.0, 2)):
        device = StageDevice("one", np.ones(2), np.ones(2), FREE, memory_bytes=limit)
        problem = PartitionProblem(graph, (device,) * 2, SCHEDULES["2bw"](), micro_batches=4, states=0.0)
        if method == DYNAMIC:
            chain = DynamicSearch(problem, every_downset(graph, 100)).best()
        else:
            chain = integer_search(problem, math.inf, UNLIMITED_S).chain
        assert (0 if chain is None else len(chain.parts)) == parts
        if chain is not None:
            assert [(one.versions, one.staleness) for one in chain.costs] == [(2, 1), (2, 1)]
    alone = PartitionProblem(graph, (device,), SCHEDULES["2bw"](), micro_batches=4, states=0.0)
    assert [(one.versions, one.staleness) for one in solve(alone).chain.costs] == [(1, 0)]


def test_many_branches_are_cut_by_integer_programming_with_a_proof():
    layers, draw = [Layer("input", (), 10)], np.random.default_rng(0)
    ends = []
    for branch in range(7):
        for step in range(3):
            layers.append(Layer(f"{branch}.{step}", (len(layers) - 1 if step else 0,), int(draw.integers(1, 20))))
        ends.append(len(layers) - 1)
    layers.append(Layer("sum", tuple(ends), 5))
    graph, seconds = PartitionGraph(tuple(layers)), draw.random(len(layers))
    device = StageDevice("one", seconds, 2 * seconds, AlphaBeta(1e-3, 2e-2))
    problem = PartitionProblem(graph, (device,) * 3)
    found = solve(problem, UNLIMITED_S)
    assert found.method == INTEGER and found.is_proven
    assert every_downset(graph, 2000) is None
    assert found.chain.slowest_s <= in_order(problem).slowest_s
    assert found.bound_s <= found.chain.slowest_s


def test_a_chain_of_equal_devices_is_cut_as_pipelines_are():
    draw = np.random.default_rng(1)
    for count in (2, 3, 5):
        seconds, sizes = draw.random(20), draw.integers(1, 100, 20)
        layers = tuple(Layer(str(i), (i - 1,) if i else (), int(size)) for i, size in enumerate(sizes))
        device = StageDevice("one", seconds, seconds, AlphaBeta(0.0, 1e-3))
        found = solve(PartitionProblem(PartitionGraph(layers), (device,) * count, overlap=False))
        until_s, cut_s = [0.0, *np.cumsum(2 * seconds)], [0.0, *(2 * 1e-3 * sizes)]
        ends = [0, *balanced(until_s, cut_s, count), 20]
        cut_s[-1] = 0.0
        pairs = zip(ends, ends[1:], strict=False)
        longest = max(until_s[b] - until_s[a] + cut_s[a] + cut_s[b] for a, b in pairs)
        assert found.chain.slowest_s <= longest * (1 + 1e-9)
        assert len(found.chain.parts) < count or found.chain.slowest_s == pytest.approx(longest)


def test_neighbours_are_merged_where_messages_cost_more_than_balance_gains():
    layers = (Layer("a", (), 1000), Layer("b", (0,), 10), Layer("c", (1,), 10))
    device = StageDevice("one", np.array([1.0, 1.0, 2.0]), np.zeros(3), AlphaBeta(0.0, 0.01))
    problem = PartitionProblem(PartitionGraph(layers), (device,) * 3, overlap=False)
    three = Chain(problem, (Part((0,), 0), Part((1,), 0), Part((2,), 0)))
    assert three.slowest_s == pytest.approx(1 + 2 * 10 + 2 * 0.1)
    two = merged(three)
    assert [one.layers for one in two.parts] == [(0, 1), (2,)]
    found = solve(problem)
    assert found.chain.parts == two.parts and found.all_devices_s == pytest.approx(three.slowest_s)


def test_slow_devices_get_little_and_the_order_is_searched():
    graph = PartitionGraph(tuple(Layer(str(i), (i - 1,) if i else (), 100 if i < 5 else 1) for i in range(6)))
    ones = np.ones(6)
    slow = StageDevice("slow", 4 * ones, 0 * ones, AlphaBeta(0.0, 1e-3))
    fast = StageDevice("fast", ones, 0 * ones, AlphaBeta(0.0, 1e-3))
    found = solve(PartitionProblem(graph, (slow, fast, fast)))
    assert found.chain.slowest_s == pytest.approx(3.0) and len(found.chain.parts) == 2
    assert found.chain.names() == (("fast",), ("fast",))  # a layer on the slow one takes 4 seconds
    small = StageDevice("small", ones, 0 * ones, FREE, memory_bytes=1000.0)
    big = StageDevice("big", ones, 0 * ones, FREE)
    saved = [900, 300, 300, 10, 10, 10]
    kept = PartitionGraph(tuple(Layer(str(i), (i - 1,) if i else (), 0, True, size) for i, size in enumerate(saved)))
    found = solve(PartitionProblem(kept, (small, big), SCHEDULES["1f1b"](), micro_batches=4))
    assert found.chain.names() == (("big",), ("small",)) and found.chain.slowest_s == pytest.approx(3.0)


def test_replicas_share_a_stage_that_cannot_be_cut():
    graph = PartitionGraph((Layer("a", (), 10), Layer("b", (0,), 10)), (Parameter("w", 4, (0,)),))
    device = StageDevice("one", np.array([1.0, 3.0]), np.zeros(2), AlphaBeta(0.0, 0.01))
    problem = PartitionProblem(graph, (device,) * 4, SCHEDULES["pipedream"](), replicas=True)
    found = solve(problem)
    assert [one.replicas for one in found.chain.parts] == [1, 3]
    assert found.chain.slowest_s == pytest.approx(1.0)


def test_what_costs_nothing_stays_with_what_it_reads():
    layers = (Layer("a", (), 10), Layer("view", (0,), 6), Layer("other view", (0,), 4), Layer("b", (1,), 1),
              Layer("c", (2, 3), 1))  # fmt: skip
    graph = PartitionGraph(layers).contracted(np.array([1.0, 0.0, 0.0, 1.0, 1.0]))
    assert graph.groups == (0, 0, 0, 3, 4)
    unread = PartitionGraph((*layers[:2], Layer("b", (0,), 1))).contracted(np.array([1.0, 0.0, 1.0]))
    assert unread.groups == (0, 0, 2)
    larger = PartitionGraph((Layer("a", (), 10), Layer("view", (0,), 11), Layer("b", (1,), 1)))
    assert larger.contracted(np.array([1.0, 0.0, 1.0])).groups == (0, 1, 2)


def test_readers_of_a_tied_parameter_can_be_kept_together():
    layers = tuple(Layer(str(i), (i - 1,) if i else (), 1) for i in range(4))
    graph = PartitionGraph(layers, (Parameter("tied", 5, (0, 2)),))
    device = StageDevice("one", np.ones(4), np.ones(4), AlphaBeta(0.0, 1.0))
    split = Chain(PartitionProblem(graph, (device,) * 2), (Part((0, 1), 0), Part((2, 3), 0)))
    assert split.split_tied() == ("tied",)
    assert [one.held_bytes for one in split.costs] == [5, 5]
    assert [one.update_s for one in split.costs] == [10.0, 10.0]  # there and back
    together = graph.tied_together()
    assert together.groups == (0, 0, 0, 3) and not together.tied
    assert solve(PartitionProblem(together, (device,) * 2)).chain.split_tied() == ()


def test_greedy_and_equal_layers_use_all_devices_in_their_order():
    graph = PartitionGraph(tuple(Layer(str(i), (i - 1,) if i else (), 1) for i in range(6)))
    device = StageDevice("one", np.array([6.0, 1, 1, 1, 1, 2]), np.zeros(6), FREE)
    problem = PartitionProblem(graph, (device,) * 2)
    assert [one.layers for one in greedy(problem).parts] == [(0,), (1, 2, 3, 4, 5)]
    assert [one.layers for one in equal_layers(problem).parts] == [(0, 1, 2), (3, 4, 5)]


def test_what_cannot_be_is_refused():
    graph = PartitionGraph((Layer("a"), Layer("b", (0,))))
    device = StageDevice("one", np.ones(2), np.ones(2), FREE)
    with pytest.raises(UsageError, match="3 devices, and a network that can be cut into 2 stages at most"):
        PartitionProblem(graph, (device,) * 3)
    with pytest.raises(UsageError, match="times of 3 layers, and the network 2"):
        PartitionProblem(graph, (StageDevice("three", np.ones(3), np.ones(3), FREE),))
    with pytest.raises(DataError, match="reads"):
        PartitionGraph((Layer("a", (1,)), Layer("b")))
    with pytest.raises(UsageError, match="expected seconds from 0 up"):
        StageDevice("one", np.array([-1.0]), np.ones(1), FREE)
    heavy = PartitionGraph((Layer("a", (), 0, True, 500), Layer("b", (0,), 0, True, 10)))
    tiny = StageDevice("tiny", np.ones(2), np.ones(2), FREE, memory_bytes=100.0)
    with pytest.raises(
        InfeasiblePlanError, match=r"stage 0 \(a, which cannot be cut\) needs 500 B on tiny.*400 B are missing"
    ):
        solve(PartitionProblem(heavy, (tiny,) * 2))
