"""Operators beside exchanges: on a CPU the two share a processor, so that operators take longer while one is under way.

The share that an exchange takes is measured: processor seconds a second of collectives that ``cdmpp.trace.probe`` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cdmpp.simulate import Timeline
from cdmpp.simulate.intervals import union
from cdmpp.trace.job import JobOp, TracedJob

MOST = 0.9
"""Of a processor: operators never stand still."""
_Durations = Mapping[int, Sequence[float]]
"""Rank -> seconds of each of its ops."""


def beside_s(job: TracedJob, timeline: Timeline, step: int) -> dict[int, list[float]]:
    """Seconds of each op of a replayed ``step`` in which an exchange of its rank is under way."""
    spans = timeline.spans
    under_way: dict[int, list[tuple[float, float]]] = {rank.rank: [] for rank in job.ranks}
    for which in range(max(step - 1, 0), step + 1):
        for place, one in enumerate(job.exchanges):
            span = spans[f"{which}/exchange{place}"]
            for number in one.ranks:
                under_way[number].append((span.start_s, span.end_s))
    found = {}
    for rank in job.ranks:
        busy, first, shares = union(under_way[rank.rank]), 0, []
        for place in range(len(rank.ops)):
            span = spans[f"{step}/rank{rank.rank}/{place}"]
            while first < len(busy) and busy[first][1] <= span.start_s:
                first += 1
            seconds, number = 0.0, first
            while number < len(busy) and busy[number][0] < span.end_s:
                seconds += min(busy[number][1], span.end_s) - max(busy[number][0], span.start_s)
                number += 1
            shares.append(seconds)
        found[rank.rank] = shares
    return found


def without(job: TracedJob, beside: _Durations) -> TracedJob:
    """Ops as they are beside no exchange, of such as they were traced."""
    return _timed(job, beside, lambda op, seconds: op.duration_s - job.processor_share * seconds, is_apart=True)


def beside_exchanges(apart: TracedJob, beside: _Durations) -> TracedJob:
    """The inverse, where ops of an ``apart`` job are so long beside exchanges."""
    share = apart.processor_share
    return _timed(
        apart, beside, lambda op, seconds: op.duration_s + min(share * seconds, op.duration_s * share / (1 - share)),
        is_apart=False,
    )  # fmt: skip


def _timed(
    job: TracedJob, beside: _Durations, seconds_of: Callable[[JobOp, float], float], is_apart: bool
) -> TracedJob:
    ranks = tuple(
        replace(
            rank,
            ops=tuple(
                replace(op, duration_s=max(0.0, seconds_of(op, seconds)))
                for op, seconds in zip(rank.ops, beside[rank.rank], strict=True)
            ),
        )
        for rank in job.ranks
    )
    return replace(job, ranks=ranks, is_apart=is_apart)
