"""The topology of a job whose collectives were timed apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from cdmpp.collectives.collective import BACKENDS, traffic
from cdmpp.collectives.probed import NO_GROUPS, Table, probed
from cdmpp.collectives.topology import Topology
from cdmpp.errors import DataError
from cdmpp.steps.step_graph import StepGraph


def probed_topology(graph: StepGraph, groups: Mapping[int, Table] = NO_GROUPS) -> Topology:
    """Return the links of a job, as ``cdmpp.trace.probe`` timed them, ``groups`` as ``probed`` takes them.

    ``DataError`` where it was not called.
    """
    table: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for kind, n_bytes, seconds in graph.measured.probed:
        table[kind].append((n_bytes, seconds))
    ranks, rates = len(graph.ranks), []
    for kind, rows in table.items():
        (before, early_s), (after, late_s) = sorted(rows)[-2:]
        rates.append(traffic(kind, ranks) * (after - before) / max(late_s - early_s, 1e-9))
    if not rates:
        raise DataError("the collectives of this job were not timed: call cdmpp.trace.probe in it")
    return probed(table, ranks, max(rates), graph.backend if graph.backend in BACKENDS else "gloo", groups)
