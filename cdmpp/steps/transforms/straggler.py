"""Straggler: the rank that computes longest, and a step without it."""

from __future__ import annotations

import statistics
from dataclasses import replace

from cdmpp.steps.replay import contention_free
from cdmpp.steps.step_graph import RankGraph, StepGraph


def straggler(graph: StepGraph) -> int | None:
    """Return the rank with most to compute; None where no other does the same, as of a server and one worker."""
    alike = [rank for rank in graph.ranks if len(_alike(graph, rank)) > 1]
    return max(alike, key=lambda rank: rank.busy_s).rank if alike else None


def without_straggler(graph: StepGraph) -> StepGraph:
    """Make the slowest rank as fast as the median of those that do the same; no change where none does."""
    number = straggler(graph)
    if number is None:
        return graph
    graph = contention_free(graph)
    slow = graph.ranks[number]
    others = [rank for rank in _alike(graph, slow) if rank.rank != number]
    ops = tuple(
        replace(
            op,
            duration_s=statistics.median([other.ops[place].duration_s for other in others]),
            delay_s=statistics.median([other.ops[place].delay_s for other in others]),
        )
        for place, op in enumerate(slow.ops)
    )
    ranks = tuple(replace(rank, ops=ops) if rank.rank == number else rank for rank in graph.ranks)
    return replace(graph, ranks=ranks) if sum(op.duration_s for op in ops) < slow.busy_s else graph


def _alike(graph: StepGraph, one: RankGraph) -> list[RankGraph]:
    names = [op.name for op in one.ops]
    return [rank for rank in graph.ranks if [op.name for op in rank.ops] == names]
