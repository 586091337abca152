"""Contention: on a CPU ops and exchanges share a processor, so that ops take longer while an exchange is under way.

The share that an exchange takes is measured: processor seconds a second of collectives that ``cdmpp.trace.probe`` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cdmpp.simulate import Timeline
from cdmpp.simulate.intervals import union
from cdmpp.steps.keys import ALL_RANKS, TaskKey
from cdmpp.steps.step_graph import Op, StepGraph
from cdmpp.steps.tasks import STEADY

MOST_SHARE = 0.9
"""Largest share of a processor that exchanges take: ops never stop."""
Shared = Mapping[int, Sequence[float]]
"""Rank -> seconds of each of its ops during which an exchange is under way."""


def shared_s(graph: StepGraph, timeline: Timeline) -> dict[int, list[float]]:
    """Return the seconds of each op of the replayed step in which an exchange of its rank is under way.

    Where ranks share a processor, an op that takes twice as long for that counts half of them.
    """
    under_way: dict[int, list[tuple[float, float]]] = {rank.rank: [] for rank in graph.ranks}
    for step in (STEADY - 1, STEADY):
        for place, one in enumerate(graph.exchanges):
            span = timeline.spans[TaskKey(step, "exchange", ALL_RANKS, place)]
            for number in one.ranks:
                under_way[number].append((span.start_s, span.end_s))
    found = {}
    for rank in graph.ranks:
        busy, first, shares = union(under_way[rank.rank]), 0, []
        for place in range(len(rank.ops)):
            span = timeline.spans[TaskKey(STEADY, "op", rank.rank, place)]
            while first < len(busy) and busy[first][1] <= span.start_s:
                first += 1
            seconds, number = 0.0, first
            while number < len(busy) and busy[number][0] < span.end_s:
                seconds += min(busy[number][1], span.end_s) - max(busy[number][0], span.start_s)
                number += 1
            if graph.processors and seconds:
                seconds *= rank.ops[place].duration_s / (span.end_s - span.start_s)
            shares.append(seconds)
        found[rank.rank] = shares
    return found


def without_contention(graph: StepGraph, shared: Shared) -> StepGraph:
    """Return ops as they are next to no exchange, from ops as they were traced."""
    share = graph.processor_share
    return _timed(graph, shared, lambda op, seconds: op.duration_s - share * seconds, is_contention_free=True)


def with_contention(graph: StepGraph, shared: Shared) -> StepGraph:
    """Do the inverse: slow ops of a contention-free graph that are next to exchanges for so long."""
    share = graph.processor_share
    return _timed(
        graph, shared, lambda op, seconds: op.duration_s + min(share * seconds, op.duration_s * share / (1 - share)),
        is_contention_free=False,
    )  # fmt: skip


def _timed(
    graph: StepGraph, shared: Shared, seconds_of: Callable[[Op, float], float], is_contention_free: bool
) -> StepGraph:
    ranks = tuple(
        replace(
            rank,
            ops=tuple(
                replace(op, duration_s=max(0.0, seconds_of(op, seconds)))
                for op, seconds in zip(rank.ops, shared[rank.rank], strict=True)
            ),
        )
        for rank in graph.ranks
    )
    return replace(graph, ranks=ranks, is_contention_free=is_contention_free)
