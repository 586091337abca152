"""Wire: what an exchange of other bytes, or of other ranks, would take on the links of a traced step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from cdmpp.collectives.collective import BACKENDS, KINDS, Collective
from cdmpp.collectives.curve import Curve
from cdmpp.errors import CdmppError
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import StepGraph

PAYLOAD = 0.94
"""Share of the bits of an Ethernet link: TCP and IP take 52 bytes of a frame of 1,500, Ethernet and the gap 38 more."""


@dataclass(frozen=True)
class Wire:
    """A wire is one kind of exchange: a curve over bytes that meets the traced ones on average."""

    curve: Curve | None
    """The probed curve; None: a line through the traced exchanges."""
    latency_s: float
    """Seconds of an exchange of no bytes."""
    beta_s: float
    """Seconds of one byte more, where there is no curve."""
    scale: float = 1.0
    """Traced over probed: exchanges next to computing take longer than by themselves."""
    ranks: int = 1
    backend: str = "gloo"

    def at(self, n_bytes: int) -> float:
        """Return the seconds with the link for itself, over as many ranks as were traced."""
        plain_s = self.latency_s + self.beta_s * n_bytes if self.curve is None else float(self.curve.at(n_bytes))
        return self.scale * plain_s


def wires(graph: StepGraph) -> dict[str, Wire]:
    """Return the wire of each kind that ranks exchange.

    Probed curves where there are; else the line through the traced exchanges of the kind with a slope and a latency
    of zero or more, least squares of relative errors. With only one size the latency is taken as zero.
    """
    found = {}
    by_kind: dict[str, list[Exchange]] = defaultdict(list)
    for one in graph.exchanges:
        by_kind[one.kind].append(one)
    backend = graph.backend if graph.backend in BACKENDS else "gloo"
    for kind, traced in by_kind.items():
        ranks = max(len(one.ranks) for one in traced)
        known = [one for one in traced if one.bytes] or traced
        sizes, took = np.array([one.bytes for one in known], float), np.array([one.measured_s for one in known])
        points = {n_bytes: seconds for name, n_bytes, seconds in graph.measured.probed if name == kind and seconds > 0}
        if len(points) >= 2 and ranks == len(graph.ranks):
            x = np.array(sorted(points), float)
            curve = Curve(
                "this job", None, backend, kind, ranks, 1, x, np.array([points[int(n)] for n in x])
            ).monotone()
            plain = float(np.sum(curve.at(sizes)))
            scale = float(np.sum(took)) / plain if plain else 1.0
            found[kind] = Wire(curve, float(curve.latency_s[0]), 0.0, scale, ranks, backend)
        else:
            found[kind] = Wire(None, *_line(sizes, took), ranks=ranks, backend=backend)
    return found


def _line(sizes: np.ndarray, took: np.ndarray) -> tuple[float, float]:
    from cdmpp.expression.constants import percentage_fit  # answers from probed curves need none of it

    if len(set(sizes)) < 2:
        biggest = float(sizes.max(initial=0.0))
        return (0.0, float(np.mean(took)) / biggest) if biggest else (float(np.mean(took)), 0.0)
    unit = sizes.max()
    latency_s, slope = percentage_fit(np.stack([np.ones(len(sizes)), sizes / unit], axis=1), np.maximum(took, 1e-9))
    return float(latency_s), float(slope) / unit


def slowed(one: Exchange, wire: Wire, bandwidth: float, link_bytes_per_s: float | None) -> float:
    """Compute the seconds of ``one`` with ``bandwidth`` times as many bytes a second.

    The part above the latency is divided by it. On a known link that part may be longer than its bytes need, since
    processors hold it up: then a slower link changes nothing until the bytes need as long. Gathers move in lock step,
    whatever holds them up.
    """
    found_s = rescaled(one, wire, bandwidth)
    if link_bytes_per_s is None or bandwidth >= 1 or one.kind not in KINDS or one.kind == "all_gather":
        return found_s
    moved = Collective(one.kind, max(one.bytes, 1), len(one.ranks), "gloo").traffic_bytes
    bytes_need_s = moved / (PAYLOAD * link_bytes_per_s * bandwidth)
    latency_s = min(wire.scale * wire.latency_s, one.measured_s)
    return min(found_s, latency_s + max(one.measured_s - latency_s, bytes_need_s))


def rescaled(one: Exchange, wire: Wire, bandwidth: float = 1.0, ranks: int | None = None) -> float:
    """Compute the seconds of ``one`` with ``bandwidth`` times as many bytes a second, among ``ranks`` ranks.

    The latency part grows with the steps of a ring, the rest with its traffic.
    """
    latency_s = min(wire.scale * wire.latency_s, one.measured_s) if one.bytes else one.measured_s
    moving_s = one.measured_s - latency_s
    if ranks is not None and ranks != len(one.ranks):
        if one.kind not in KINDS or one.kind == "send_recv":
            raise CdmppError(
                f"{one.kind} cannot be predicted for other numbers of ranks: expected one of {', '.join(KINDS)}"
            )
        new, old = (Collective(one.kind, max(one.bytes, 1), count, wire.backend) for count in (ranks, len(one.ranks)))
        latency_s *= new.steps / max(old.steps, 1)
        moving_s *= new.traffic_bytes / max(old.traffic_bytes, 1e-9)
    return latency_s + moving_s / bandwidth
