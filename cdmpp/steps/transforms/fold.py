"""Fold: one rank in place of many that do the same, which is faster to replay."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.steps.step_graph import StepGraph


def fold(graph: StepGraph) -> StepGraph:
    """Let one rank stand for all where they run the same ops and take part alike in every exchange.

    Exchanges take as long as before: their members are all ranks of the job. The graph stays as it is where ranks
    differ or share a processor, messages have two ends, some ranks a server, or exchanges were measured.
    """
    ranks, first = tuple(range(len(graph.ranks))), graph.ranks[0]
    if len(ranks) == 1 or graph.processors or any(replace(rank, rank=0) != first for rank in graph.ranks[1:]):
        return graph
    for one in graph.exchanges:
        is_of_all = one.kind not in ("push_pull", "send_recv") and one.wire_s is None and one.ranks == ranks
        if not is_of_all or any(len(set(places.values())) > 1 for places in (one.after, one.before)):
            return graph
    exchanges = (
        replace(
            one,
            after={0: one.after[0]},
            before={0: one.before[0]} if one.before else {},
            members=one.participants,
        )
        for one in graph.exchanges
    )
    return replace(graph, ranks=(first,), exchanges=tuple(exchanges))
