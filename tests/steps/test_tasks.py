"""One builder of tasks: keys in fields, measured exchanges next to those that a topology carries, the steady step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.simulate import simulate
from cdmpp.simulate.task_columns import TaskColumns
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.exchange_costs import ExchangeCosts
from cdmpp.steps.keys import ALL_RANKS, Stream, TaskKey
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import Op, RankGraph, StepGraph
from cdmpp.steps.tasks import STEADY, STEPS, _step, step_ends_s, step_tasks
from tests.steps.toy_graph import MIB, WIRE, graph_of, ranks_of, wires


def test_every_task_is_known_by_its_fields():
    graph = ranks_of(2, sizes=[MIB])
    graph = graph.with_exchanges([Exchange("all_reduce", MIB, {0: 1, 1: 1}, name="bucket 0")])
    keys = [task.key for task in step_tasks(graph, wires(2), steps=1).tasks]
    own = [("start", 0), ("op", 0), ("op", 1), ("op", 2), ("end", 0)]
    assert keys == [
        *(TaskKey(0, kind, rank, place) for rank in (0, 1) for kind, place in own),
        TaskKey(0, "exchange", ALL_RANKS, 0),
    ]
    assert [key.is_of_exchange for key in keys] == [False] * 10 + [True]
    rings = [task for task in step_tasks(graph, wires(2), "ring step", 1).tasks if task.key.is_of_exchange]
    assert [task.key for task in rings] == [
        TaskKey(0, "ring step", rank, 0, (0, number)) for number in range(2) for rank in (0, 1)
    ]
    assert {task.resources for task in rings} == {(Stream(rank, "communication"),) for rank in (0, 1)}


def test_later_steps_are_the_first_one_moved():
    """Tasks, what they wait for and their streams are those that each step by itself has."""
    graph = ranks_of(2, sizes=[MIB])
    exchanges = [
        Exchange("all_reduce", MIB, {0: 1, 1: 1}, {0: (2,)}, name="bucket 0"),
        Exchange("all_reduce", MIB, {0: 1, 1: 1}, {1: (2,)}, name="bucket 1", follows=True),
        Exchange("send_recv", MIB, {0: 0, 1: START}, {1: (1,)}, group="0->1", members=(0, 1)),
        Exchange("send_recv", MIB, {0: 1, 1: START}, {1: (2,)}, group="0->1", members=(0, 1)),
    ]
    graph, topology = replace(graph.with_exchanges(exchanges), exchanges=tuple(exchanges)), wires(2)
    costs = ExchangeCosts.on(topology, graph.exchanges)
    each = [task for step in range(3) for task in _step(step, step, graph, costs, "collective")]
    found, columns = step_tasks(graph, topology, steps=3), TaskColumns.of(each)
    assert list(found.tasks) == [found.tasks[number] for number in range(len(each))] == each == found.tasks[:]
    assert dict(found.numbers) == columns.numbers
    assert all(found.numbers[task.key] == number for number, task in enumerate(each))
    assert found.sets == columns.sets and found.ways == columns.ways
    for name in ("duration_s", "gap_s", "priority", "resources", "way", "bytes", "count", "begins", "befores"):
        assert getattr(found, name).tolist() == getattr(columns, name).tolist(), name
        assert getattr(found, name).dtype == getattr(columns, name).dtype, name
    for wrong in (TaskKey(3, "end", 0, 0), TaskKey(-1, "end", 0, 0), "end"):
        assert wrong not in found.numbers
    assert {task.after for task in each if task.key.kind == "start" and task.key.step == 2} == {
        (TaskKey(1, "end", rank, 0),) for rank in (0, 1)
    }


def test_a_delay_follows_what_is_waited_for_and_a_gap_runs_meanwhile():
    """The exchange ends at 3 s: after it the delay of 1 s begins, whereas the gap of 1 s is over by then."""
    exchange = Exchange("all_reduce", 8, {0: 0}, {0: (1,)}, wire_s=2.0)
    for first, second, step_s in (
        (Op("a", "forward", 1.0), Op("b", "forward", 1.0, delay_s=1.0), 5.0),
        (Op("a", "forward", 1.0, gap_s=1.0), Op("b", "forward", 1.0), 4.0),
    ):
        graph = StepGraph((RankGraph(0, (first, second)),), (exchange,))
        assert replay(graph).step_s == pytest.approx(step_s)


def test_measured_and_predicted_exchanges_stand_in_one_step():
    """The message takes 4 s from the start on, the collective what the topology says; the update waits for both."""
    graph = ranks_of(2, sizes=[MIB])
    message = Exchange("send_recv", MIB, {0: START, 1: START}, wire_s=4.0, group="0->1")
    graph = graph.with_exchanges([message, Exchange("all_reduce", MIB, {0: 1, 1: 1})])
    assert replay(graph, wires(2)).step_s == pytest.approx(4.0 + 1e-3)
    short = replace(graph, exchanges=(replace(graph.exchanges[0], wire_s=1e-6), graph.exchanges[1]))
    assert replay(short, wires(2)).step_s == pytest.approx(3e-3 + 2 * WIRE.seconds(MIB // 2) + 1e-3)


def test_the_reported_step_repeats_itself():
    """Rank 1 is slower: from the second step on rank 0 waits for it, and all steps take as long."""
    slow = replace(ranks_of(2).ranks[1], start_s=5e-3)
    graph = graph_of(ranks_of(2).ranks[0], slow)
    graph = graph.with_exchanges([Exchange("all_reduce", MIB, {0: 5, 1: 5})])
    ends = step_ends_s(simulate(step_tasks(graph, wires(2), steps=STEPS + 3), rates=wires(2).rates), 2, STEPS + 3)
    lengths = [b - a for a, b in zip(ends, ends[1:], strict=False)]
    assert lengths[STEADY - 1 :] == pytest.approx([replay(graph, wires(2)).step_s] * (len(lengths) - STEADY + 1))


def test_an_exchange_that_nobody_measured_needs_a_topology():
    graph = ranks_of(2).with_exchanges([Exchange("all_reduce", MIB, {0: 5, 1: 5}, name="bucket 0")])
    with pytest.raises(CdmppError, match="nobody measured bucket 0, and there is no topology"):
        replay(graph)
    with pytest.raises(CdmppError, match=r"exchange 0 is of ranks \(0, 3\), the step has 2 ranks"):
        replace(graph, exchanges=(Exchange("all_reduce", MIB, {0: 5, 3: 5}),))


def test_messages_both_ways_take_turns_on_gloo_only():
    """The word that a receiver is there stands behind what it sends itself, in one connection (torch 2.13)."""
    ranks = tuple(RankGraph(rank, (Op("x", "forward", 0.0),)) for rank in range(2))
    graph = StepGraph(ranks, messages(MIB))
    one_s = replay(replace(graph, exchanges=messages(MIB)[:1]), wires(2)).step_s
    assert replay(graph, wires(2)).step_s == pytest.approx(one_s)
    assert replay(graph, wires(2, backend="gloo")).step_s == pytest.approx(2 * one_s)


def messages(size: int) -> tuple[Exchange, ...]:
    """One each way behind op 0; op 1 of both ranks waits for both."""
    return tuple(
        Exchange("send_recv", size, {0: 0, 1: 0}, {0: (1,), 1: (1,)}, group=group, members=tuple(map(int, group[::3])))
        for group in ("0->1", "1->0")
    )


def test_over_gloo_who_comes_last_sends_first_and_a_buffer_frees_the_sender():
    """Rank 1 comes last: its message goes first and rank 0 goes on at its end; its own lies in the socket by then."""
    size = MIB
    ranks = tuple(RankGraph(n, (Op("x", "forward", 1.0 + n), Op("y", "forward", 1.0))) for n in range(2))
    made = replay(StepGraph(ranks, messages(size)), wires(2, backend="gloo"))
    spans, origin_s = made.spans, made.window_s[0]
    begin_s = {key.rank: span.start_s - origin_s for key, span in spans.items() if key.kind == "op" and key.place == 1}
    one_s = replay(StepGraph(ranks, messages(size)[:1]), wires(2)).step_s - 3.0
    assert begin_s[0] == pytest.approx(2.0 + one_s, abs=1e-6)
    assert begin_s[1] == pytest.approx(2.0 + 2 * one_s, abs=1e-6)
    large = replay(StepGraph(ranks, messages(8 * MIB)), wires(2, backend="gloo"))
    held = next(span for key, span in large.spans.items() if key[1:4] == ("op", 0, 1))
    other = next(span for key, span in large.spans.items() if key[1:4] == ("op", 1, 1))
    assert held.start_s == pytest.approx(other.start_s, abs=1e-6)  # no buffer takes 8 MiB: rank 0 waits for its end


def test_an_exchange_that_follows_waits_for_one_of_another_group():
    ranks = tuple(RankGraph(rank, (Op("x", "backward", 0.0),)) for rank in range(4))
    first, second = (
        [
            Exchange("all_reduce", MIB, dict.fromkeys(group, 0), dict.fromkeys(group, (1,)), members=group)
            for group in groups
        ]
        for groups in (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    )
    beside = StepGraph(ranks, (*first, *second))
    behind = replace(beside, exchanges=(*first, *(replace(one, follows=True) for one in second)))
    one_s = replay(replace(beside, exchanges=tuple(first)), wires(4)).step_s
    assert replay(beside, wires(4)).step_s == pytest.approx(one_s)
    assert replay(behind, wires(4)).step_s == pytest.approx(2 * one_s)


@pytest.mark.parametrize("wire_s", [None, 2.0])
def test_the_steady_step_has_the_spans_of_its_keys_in_the_order_of_their_starts(wire_s):
    exchanges = [Exchange("all_reduce", MIB, {0: 1, 1: 1}, wire_s=wire_s), Exchange("all_reduce", MIB, {0: 0, 1: 1})]
    made = replay(ranks_of(2, sizes=[MIB]).with_exchanges(exchanges), wires(2))
    steady = [(key, span) for key, span in made.timeline.spans.items() if key.step == STEADY]
    assert list(made.spans.items()) == steady
    assert made.critical_path[-1] == max((span for _, span in steady), key=lambda span: span.end_s)
    assert {key.step for key in made.timeline.spans} == set(range(STEPS))
    for key, span in steady:
        assert made.timeline.spans[key] == span
