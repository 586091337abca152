"""The topology of ranks whose collectives were timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.collective_model import CollectiveEstimate
from cdmpp.collectives.curve import Curve
from cdmpp.collectives.topology import Topology, certain
from cdmpp.errors import CdmppError

Table = Mapping[str, Sequence[tuple[float, float]]]
"""Kind of collective -> (bytes, seconds)."""
NO_GROUPS: Mapping[int, Table] = {}


def probed(
    table: Table, ranks: int, bytes_per_s: float, backend: str = "gloo", groups: Mapping[int, Table] = NO_GROUPS
) -> Topology:
    """Join ranks whose collectives were timed.

    Args:
        table: collectives of all ranks, two or more sizes of each.
        ranks: that took part.
        bytes_per_s: of each rank's link; it matters where flows share one.
        backend: that carried them out.
        groups: ranks of a group -> collectives of groups of so many, all groups at once. Those of groups that were not
            timed follow from those of all ranks, as a ring grows.

    Raises:
        CdmppError: a table that is no curve, and later a kind that was not timed.
    """
    curves = {}
    for size, own in {**groups, ranks: table}.items():
        for kind, rows in own.items():
            sizes, seconds = np.array(sorted(rows), np.float64).reshape(-1, 2).T
            curves[kind, size] = Curve("probed", None, backend, kind, size, 1, sizes, seconds).monotone()

    def cost(collective: Collective) -> CollectiveEstimate:
        runs_as = collective.runs_as
        if runs_as.ranks == 1:
            return certain(0.0, "one rank")
        own = (runs_as.kind, runs_as.ranks) in curves
        if not own and runs_as.kind not in table:
            raise CdmppError(f"no {runs_as.kind} was timed here, only {', '.join(table)}: time it too")
        curve = curves[runs_as.kind, runs_as.ranks if own else ranks]
        timed_s = float(curve.at(runs_as.bytes))
        if own or runs_as.kind == "send_recv":
            return certain(timed_s, "timed")
        timed, latency_s = replace(runs_as, ranks=ranks), min(float(curve.latency_s[0]), timed_s)
        found_s = latency_s * runs_as.steps / timed.steps
        found_s += (timed_s - latency_s) * runs_as.traffic_bytes / timed.traffic_bytes
        return certain(
            found_s, "timed", f"{runs_as.kind} of {runs_as.ranks} ranks was not timed: from {ranks}, as a ring grows"
        )

    return Topology("probed", ranks, backend, cost, bytes_per_s)
