"""Graphs of partitions made of step graphs: the same cuts, messages and steps as those of plans with a pipeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.errors import InfeasiblePlanError, UsageError
from cdmpp.partition.devices import StageDevice
from cdmpp.partition.graph import Layer, PartitionGraph
from cdmpp.partition.layer_times import LayerTimes, check_same
from cdmpp.partition.outcome import replayed
from cdmpp.partition.problem import PartitionProblem
from cdmpp.partition.question import PartitionQuestion, answer
from cdmpp.partition.solve import solve
from cdmpp.plans.cut import Cut
from cdmpp.plans.cut_places import CutPlaces
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower
from cdmpp.plans.plan import Plan
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.plans.sources.table import TableSource
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.from_layers import Layer as Row
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import Gradient, Op, RankGraph

LINK = AlphaBeta(1e-6, 1e-10)


@pytest.fixture
def source():
    draw = np.random.default_rng(0)
    return TableSource([
        Row(f"layer {i}", *(1e-3 * (draw.random(2) + (0.5, 1.5))), int(draw.integers(1, 9)) * 1000,
            int(draw.integers(1, 9)) * 10_000, None, 1e-4)
        for i in range(8)
    ])  # fmt: skip


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_partition_of_a_chain_is_replayed_as_the_plan_with_the_same_cuts(source, schedule):
    work = source.work(1, ParallelDegrees())
    graph, times = PartitionGraph.of(work.rank), LayerTimes.of(work.rank)
    assert times.step_s == pytest.approx(sum(work.rank.phase_s.values()))
    device = times.device("one", LINK, np.inf, np.inf)
    chain = solve(PartitionProblem(graph, (device,) * 3, SCHEDULES[schedule](), 8)).chain
    cuts = [part.layers[0] for part in chain.parts[1:]]
    cut = Cut(CutPlaces(work.rank), tuple(cuts))
    for number, cost in enumerate(chain.costs):
        assert cost.held_bytes / graph.parameter_bytes == pytest.approx(cut.shares[number])
        assert sum(cut.sent_bytes(number)) == cost.message_bytes[0]
        assert sum(cut.returned_bytes(number + 1)) == cost.message_bytes[1]
    names = tuple(graph.layers[place].name for place in cuts)
    plan = Plan(degrees=ParallelDegrees(pp=3), model_parallel=(Pipeline(schedule, 8, names, overlap=True),))
    topology = fitted(AlphaBeta(2 * LINK.alpha_s, LINK.beta_s), 3)
    planned = replay(lower(source, plan, topology, 8).graph, topology)
    assert replayed(chain).step_s == pytest.approx(planned.step_s, rel=1e-9)


def branched() -> RankGraph:
    """Two branches that are summed up, a counter that nobody reads, and a parameter of two layers."""
    ops = [
        Op("input", "forward", 1.0, output_bytes=10),
        Op("counter", "forward", 0.1),
        Op("left", "forward", 1.0, output_bytes=20, inputs=(0,)),
        Op("right", "forward", 2.0, output_bytes=30, inputs=(0,), workspace_bytes=7),
        Op("sum", "forward", 1.0, output_bytes=5, inputs=(2, 3)),
        Op("sum backward", "backward", 1.0, output_bytes=50, inputs=(4,), forward=4),
        Op("right backward", "backward", 4.0, output_bytes=10, inputs=(3, 5), forward=3),
        Op("left backward", "backward", 2.0, output_bytes=10, inputs=(2, 5), forward=2),
        Op("update", "update", 0.5),
    ]
    gradients = (Gradient("tied", 40, 7, readers=(2, 3)), Gradient("own", 8, 5, readers=(4,)))
    return RankGraph(0, tuple(ops), gradients)


def test_layers_have_what_belongs_to_them():
    rank = branched()
    graph, times = PartitionGraph.of(rank, 3), LayerTimes.of(rank)
    assert [one.name for one in graph.layers] == ["input", "counter", "left", "right", "sum"]
    assert [one.inputs for one in graph.layers] == [(), (), (0,), (0,), (2, 3)]
    assert [one.saved_bytes for one in graph.layers] == [0, 0, 20, 30, 5]
    assert [one.has_gradient for one in graph.layers] == [False, False, True, True, True]
    assert graph.layers[3].work_bytes == 10 + 30 and graph.input_bytes == 3
    assert graph.groups == (0, 2, 2, 3, 4)  # the counter stays with the layer after it
    assert [one.name for one in graph.tied] == ["tied"] and graph.own_bytes.tolist() == [0, 0, 0, 0, 8]
    assert times.backward_s.tolist() == [0, 0, 2.0, 4.0, 1.0] and times.update_s == 0.5
    assert times.scaled(2.0).step_s == pytest.approx(2 * times.step_s)


def test_a_split_parameter_is_said_and_can_be_kept_together():
    rank = branched()
    graph, times = PartitionGraph.of(rank), LayerTimes.of(rank)
    device = times.device("one", AlphaBeta(0.0, 1e-6), np.inf, np.inf)
    question = PartitionQuestion(graph, (device,) * 2, 1, 2, (SCHEDULES["pipedream"](),))
    split = answer(question)
    assert split.best.chain.split_tied() == ("tied",)
    assert any(warning.startswith("parameter tied is read on several stages") for warning in split.warnings)
    kept = answer(replace(question, keep_tied=True))
    assert kept.best.chain.split_tied() == () and kept.warnings == ()
    assert kept.best.chain.slowest_s >= split.best.chain.slowest_s


def test_stages_run_forward_passes_again_where_memory_is_short():
    rank = branched()
    graph, times = PartitionGraph.of(rank), LayerTimes.of(rank)
    schedules = tuple(kind() for kind in SCHEDULES)

    def asked(memory_bytes):
        device = times.device("one", AlphaBeta(0.0, 1e-6), memory_bytes, np.inf)
        return PartitionQuestion(graph, (device,) * 2, 1, 4, schedules, states=0.0)

    roomy = answer(asked(10_000.0))
    assert not roomy.refused and not any(one.chain.problem.recompute for one in roomy.ranked)
    needed = {one.schedule.name: one.peak_bytes for one in roomy.ranked}
    tight = answer(asked(needed["gpipe"] - 1))
    again = next(one for one in tight.ranked if one.schedule.name == "gpipe")
    assert again.chain.fits and again.peak_bytes < needed["gpipe"]
    with pytest.raises(InfeasiblePlanError, match=r"are missing \(.*weights, gradients and states"):
        answer(asked(50.0))


def test_other_operators_on_another_device_are_refused():
    rank = branched()
    graph = PartitionGraph.of(rank)
    check_same(graph, rank, "b", "a")
    other = replace(rank, ops=(replace(rank.ops[0], name="embedding"), *rank.ops[1:]))
    with pytest.raises(UsageError, match="other operators on b than on a, embedding in place of input"):
        check_same(graph, other, "b", "a")


def test_cuts_with_fewer_messages_are_taken_where_their_replay_is_faster():
    layers = (Layer("a", (), 1), Layer("b", (0,), 1))
    device = StageDevice("one", np.ones(2), np.ones(2), AlphaBeta(1.025, 0.0))
    schedules = tuple(SCHEDULES[name]() for name in ("pipedream", "delayed"))
    question = PartitionQuestion(PartitionGraph(layers), (device,) * 2, 1, 4, schedules)
    found = {one.schedule.name: one for one in answer(question).ranked}
    stream, delayed = found["pipedream"], found["delayed"]
    assert len(stream.partition.chain.parts) == 2 and stream.partition.is_proven
    assert len(stream.chain.parts) == 1 and stream.step_s == pytest.approx(4 * 4.0)  # else 4 x 4.05
    assert len(delayed.chain.parts) == 2 and delayed.step_s == pytest.approx(4 * 8.1 / 3, rel=0.01)
