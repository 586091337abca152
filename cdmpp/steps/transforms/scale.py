"""Scale: more ranks, a slower device, another kernel, sharded updates."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.errors import CdmppError
from cdmpp.steps.step_graph import StepGraph


def replicate(graph: StepGraph, ranks: int) -> StepGraph:
    """A graph without exchanges on ``ranks`` ranks, which do what its ranks do in turn, each with its own batch."""
    models = (graph.ranks[number % len(graph.ranks)] for number in range(ranks))
    return replace(graph, ranks=tuple(replace(one, rank=number) for number, one in enumerate(models)))


def scale_rank(graph: StepGraph, rank: int, factor: float) -> StepGraph:
    """The graph with ops of one rank that take ``factor`` times as long; pauses of its host stay.

    Raises:
        CdmppError: a factor that is not positive and finite.
    """
    check_factor(f"rank {rank}", factor)
    ranks = (
        replace(one, ops=tuple(replace(op, duration_s=factor * op.duration_s) for op in one.ops))
        if one.rank == rank
        else one
        for one in graph.ranks
    )
    return replace(graph, ranks=tuple(ranks))


def shard_update(graph: StepGraph, ranks: int) -> StepGraph:
    """The graph with parameters sharded over so many ranks: an update takes as long as its shard is large."""
    if all(one.update_shards == ranks for one in graph.ranks):
        return graph
    sharded = []
    for one in graph.ranks:
        part = one.update_shards / ranks
        ops = (replace(op, duration_s=part * op.duration_s) if op.phase == "update" else op for op in one.ops)
        sharded.append(replace(one, ops=tuple(ops), update_shards=ranks) if part != 1 else one)
    return replace(graph, ranks=tuple(sharded))


def check_factor(what: str, factor: float) -> None:
    """Raise ``CdmppError`` unless ``factor`` is positive and finite."""
    if not 0 < factor < float("inf"):
        raise CdmppError(f"{what} {factor}: expected a positive factor")
