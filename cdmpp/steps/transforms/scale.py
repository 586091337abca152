"""Scale: more ranks, a slower device, another kernel, sharded updates."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.collectives.collective import MOST_RANKS
from cdmpp.errors import CdmppError
from cdmpp.steps.derived import derived
from cdmpp.steps.replay import contention_free
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.tasks import check_work
from cdmpp.steps.transforms.edit import each_op
from cdmpp.steps.wire import rescaled, wires


def scale_ranks(graph: StepGraph, ranks: int) -> StepGraph:
    """Let ``ranks`` ranks do in turn what those of the graph do, each with its own batch of the same size.

    Raises:
        CdmppError: no number of ranks, more tasks than memory holds, or exchanges that are not all among all ranks.
    """
    if not 1 <= ranks <= MOST_RANKS:
        raise CdmppError(f"ranks {ranks:.12g}: expected 1 to {MOST_RANKS:,}")
    check_work(ranks * (max(rank.task_count for rank in graph.ranks) + len(graph.exchanges)), ranks)
    if any(len(one.ranks) != len(graph.ranks) for one in graph.exchanges):
        raise CdmppError("other numbers of ranks can be predicted only where every exchange is among all of them")
    graph = contention_free(graph)
    models = [graph.ranks[number % len(graph.ranks)] for number in range(ranks)]
    wire = wires(graph)
    exchanges = tuple(
        replace(
            one,
            wire_s=rescaled(one, wire[one.kind], ranks=ranks),
            after={number: one.after[model.rank] for number, model in enumerate(models)},
            before={number: one.before.get(model.rank, ()) for number, model in enumerate(models)},
            lag_s={number: one.lag_s.get(model.rank, 0.0) for number, model in enumerate(models)},
        )
        for one in graph.exchanges
    )
    renumbered = tuple(replace(model, rank=number) for number, model in enumerate(models))
    return replace(graph, ranks=renumbered, exchanges=exchanges, measured=replace(graph.measured, waits_s=None))


def scale_rank(graph: StepGraph, rank: int, factor: float) -> StepGraph:
    """Let ops of one rank take ``factor`` times as long; pauses of its host stay.

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


def scale_kernel(graph: StepGraph, name: str, factor: float) -> StepGraph:
    """Let ops whose name has ``name`` in it take ``factor`` times as long, on all ranks.

    Raises:
        CdmppError: no op of the name, or a factor that is not positive and finite.
    """
    check_factor(f"kernel {name}", factor)
    ops = [op for rank in graph.ranks for op in rank.ops]
    if not any(name in op.name for op in ops):
        took: dict[str, float] = {}
        for op in ops:
            took[op.name] = took.get(op.name, 0.0) + op.duration_s
        longest = sorted(took, key=lambda key: -took[key])[:5]
        raise CdmppError(f"no operator of the trace has {name!r} in its name; the longest are {', '.join(longest)}")
    return each_op(
        contention_free(graph),
        lambda op: replace(op, duration_s=op.duration_s * (factor if name in op.name else 1.0)),
    )


def shard_update(graph: StepGraph, ranks: float) -> StepGraph:
    """Shard parameters over so many ranks: an update takes as long as its shard is large."""
    sharded = []
    for one in graph.ranks:
        part = one.update_shards / ranks
        ops = (derived(op, duration_s=part * op.duration_s) if op.phase == "update" else op for op in one.ops)
        sharded.append(derived(one, ops=tuple(ops), update_shards=ranks) if part != 1 else one)
    return derived(graph, ranks=tuple(sharded))


def check_factor(what: str, factor: float) -> None:
    """Raise ``CdmppError`` unless ``factor`` is positive and finite."""
    if not 0 < factor < float("inf"):
        raise CdmppError(f"{what} {factor}: expected a positive factor")
