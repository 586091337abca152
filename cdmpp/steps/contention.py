"""Contention: on a CPU ops and exchanges share a processor, so that ops take longer while an exchange is under way.

The share that an exchange takes is measured: processor seconds a second of collectives that ``cdmpp.trace.probe`` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cdmpp.simulate import Span, Timeline
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

    Messages count half, since their bytes go one way only. Where ranks share a processor, the mean over the exchanges
    of all of them counts, and an op that takes twice as long since another rank computes counts half of that.
    """
    collectives, messages = (
        {rank.rank: list[tuple[float, float]]() for rank in graph.ranks} for _ in ("both ways", "one way")
    )
    for step in (STEADY - 1, STEADY):
        for place, one in enumerate(graph.exchanges):
            span = timeline.spans[TaskKey(step, "exchange", ALL_RANKS, place)]
            for number in one.ranks:
                (collectives if one.peers is None else messages)[number].append((span.start_s, span.end_s))
    found = {}
    for rank in graph.ranks:
        spans = [timeline.spans[TaskKey(STEADY, "op", rank.rank, place)] for place in range(len(rank.ops))]
        beside = [i for i, name in enumerate(graph.processors) if name == graph.processors[rank.rank]] or [rank.rank]
        ways = ((collectives, 1.0), (messages, 0.5))
        each = [weight * _overlaps(spans, of[i]) for i in beside for of, weight in ways]
        shares = np.sum(each, axis=0) / len(beside)
        if graph.processors:
            taken_s = np.array([span.end_s - span.start_s for span in spans])
            shares *= np.array([op.duration_s for op in rank.ops]) / np.where(taken_s > 0, taken_s, 1.0)
        found[rank.rank] = shares.tolist()
    return found


def _overlaps(spans: Sequence[Span], under_way: Sequence[tuple[float, float]]) -> np.ndarray:
    """Seconds of each span in which any of the others is under way."""
    busy, first, found = union(under_way), 0, list[float]()
    for span in spans:
        while first < len(busy) and busy[first][1] <= span.start_s:
            first += 1
        seconds, number = 0.0, first
        while number < len(busy) and busy[number][0] < span.end_s:
            seconds += min(busy[number][1], span.end_s) - max(busy[number][0], span.start_s)
            number += 1
        found.append(seconds)
    return np.array(found)


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
