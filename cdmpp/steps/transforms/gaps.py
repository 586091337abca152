"""Gaps: a host that launches at once."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.steps.replay import contention_free
from cdmpp.steps.step_graph import RankGraph, StepGraph


def without_gaps(graph: StepGraph) -> StepGraph:
    """Drop delays, gaps, start and tail, but for the delays of ops that a message blocks."""
    graph = contention_free(graph)
    blocked = {
        (rank, place) for one in graph.exchanges for rank, places in one.blocks.items() for place in places
    }  # fmt: skip
    return replace(graph, ranks=tuple(_bare(rank, blocked) for rank in graph.ranks))


def _bare(rank: RankGraph, blocked: set[tuple[int, int]]) -> RankGraph:
    ops = tuple(
        replace(op, gap_s=0.0, delay_s=op.delay_s if (rank.rank, place) in blocked else 0.0)
        for place, op in enumerate(rank.ops)
    )
    return replace(rank, ops=ops, start_s=0.0, tail_s=0.0)
