"""Merged ops: fewer tasks, and everything else as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.steps.exchange import Exchange
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import Op, RankGraph, StepGraph
from cdmpp.steps.transforms.merge_ops import merge_ops
from tests.steps.toy_graph import MIB, ranks_of, wires

SECONDS = st.sampled_from([0.0, 1e-3, 2.5e-3])


@st.composite
def steps(draw: st.DrawFn) -> StepGraph:
    """Two ranks with ops on two streams, pauses, waits and exchanges in a random order."""
    ranks = []
    for rank in range(2):
        ops = list[Op]()
        for place in range(draw(st.integers(1, 12))):
            stream = draw(st.sampled_from("ab"))
            others = [i for i, op in enumerate(ops) if op.stream != stream]
            waits = (draw(st.sampled_from(others)),) if others and draw(st.integers(0, 3)) == 0 else ()
            phase = "forward" if place < 6 else "backward"
            times = draw(SECONDS), draw(SECONDS), draw(SECONDS)
            ops.append(Op(f"op {place}", phase, times[0], times[1], stream=stream, waits=waits, delay_s=times[2]))
        ranks.append(RankGraph(rank, tuple(ops)))
    exchanges, least = [], {0: 0, 1: 0}
    for _ in range(draw(st.integers(0, 3))):
        after = {rank: draw(st.integers(least[rank] - 1, len(ranks[rank].ops) - 1)) for rank in least}
        before = {rank: (draw(st.integers(after[rank] + 1, len(ranks[rank].ops))),) for rank in least}
        least = {rank: max(least[rank], before[rank][0]) for rank in least}  # no two wait for each other
        if any(least[rank] >= len(ranks[rank].ops) for rank in least):
            break
        exchanges.append(Exchange("all_reduce", MIB, after, before))
    return StepGraph(tuple(ranks), tuple(exchanges))


@settings(max_examples=200, deadline=None)
@given(steps())
def test_the_step_and_its_parts_stay(graph):
    merged = merge_ops(graph)
    before, after = (replay(one, wires(2)) for one in (graph, merged))
    assert after.step_s == pytest.approx(before.step_s, abs=1e-12)
    for rank, own in zip(merged.ranks, graph.ranks, strict=True):
        assert rank.phase_s == pytest.approx(own.phase_s) and rank.busy_s == pytest.approx(own.busy_s)
        assert len(rank.ops) <= len(own.ops)
    for rank in graph.ranks:
        if len(rank.streams) == 1:  # pauses move ops, and so which of them overlap with those of another stream
            assert after.busy_s[rank.rank] == pytest.approx(before.busy_s[rank.rank], abs=1e-9)
    for number in range(len(graph.exchanges)):
        one, other = (
            next(span for key, span in made.spans.items() if key.kind == "exchange" and key.place == number)
            for made in (before, after)
        )
        assert (one.start_s, one.end_s) == pytest.approx((other.start_s, other.end_s), abs=1e-12)


def test_ops_between_which_nothing_happens_are_one():
    graph = ranks_of(2, sizes=[MIB] * 3, gap_s=1e-4)
    graph = replace(graph, exchanges=(Exchange("all_reduce", MIB, {0: 3, 1: 3}, {0: (6,), 1: (6,)}),))
    ops = merge_ops(graph).ranks[0].ops
    assert [op.name for op in ops] == ["forward 0 to forward 2", "backward 2", "backward 1 to backward 0", "update"]
    assert [op.duration_s for op in ops] == pytest.approx([3e-3, 2e-3, 4e-3, 1e-3])
    assert [op.delay_s for op in ops] == pytest.approx([2e-4, 0.0, 1e-4, 0.0])
    assert merge_ops(graph).exchanges[0].after == {0: 1, 1: 1} and merge_ops(graph).exchanges[0].before[0] == (3,)
    for shared in (replace(graph, processor_share=0.2), replace(graph, processors=("cpu", "cpu"))):
        assert merge_ops(shared) is shared
