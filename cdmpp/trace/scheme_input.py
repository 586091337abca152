"""A traced job as the schemes of ``cdmpp.collectives`` take it: what ranks compute, and the topology between them."""

from __future__ import annotations

from collections import defaultdict

from cdmpp.collectives.collective import BACKENDS, traffic
from cdmpp.collectives.topology import Topology, probed
from cdmpp.errors import DataError
from cdmpp.steps.step_graph import Gradient, Op, RankGraph, StepGraph
from cdmpp.trace.job import TracedJob


def graph_of(job: TracedJob) -> StepGraph:
    """Of each rank, without what it exchanges.

    A gap counts to the op before it. Parameters have no names in a trace: gradients are numbered in the order in which
    they become ready, and stand last first, as a model has them.
    """
    found = []
    for rank in job.ranks:
        gaps = [op.gap_s for op in rank.ops[1:]] + [rank.tail_s]
        operations = tuple(
            Op(op.name, op.phase, op.duration_s, gap_s) for op, gap_s in zip(rank.ops, gaps, strict=True)
        )
        numbered = [(f"gradient {place}", one) for place, one in enumerate(rank.gradients) if one.bytes]
        gradients = tuple(Gradient(name, one.bytes, one.after) for name, one in reversed(numbered))
        found.append(RankGraph(rank.rank, operations, gradients, start_s=rank.ops[0].gap_s if rank.ops else 0.0))
    return StepGraph(tuple(found))


def topology_of(job: TracedJob) -> Topology:
    """The links of the job, as ``cdmpp.trace.probe`` timed them; ``DataError`` where it was not asked."""
    table: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for kind, n_bytes, seconds in job.probed:
        table[kind].append((n_bytes, seconds))
    ranks, rates = len(job.ranks), []
    for kind, rows in table.items():
        (before, early_s), (after, late_s) = sorted(rows)[-2:]
        rates.append(traffic(kind, ranks) * (after - before) / max(late_s - early_s, 1e-9))
    if not rates:
        raise DataError("the collectives of this job were not timed: call cdmpp.trace.probe in it")
    return probed(table, ranks, max(rates), job.backend if job.backend in BACKENDS else "gloo")
