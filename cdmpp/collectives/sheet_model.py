"""SheetModel: what a collective takes on a link that nobody measured, from its sheet and four shared numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.collectives import interconnect
from cdmpp.collectives.algorithms import best, ring, tree
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.curve import Curve
from cdmpp.collectives.interconnect import AlphaBeta, Interconnect
from cdmpp.errors import DataError

_START = (5e-6, 1.0, 0.7, 0.4)
_GPU_STEP_S = 1e-6
"""Seconds of a step on a link whose latency nobody published; the known links of GPUs have 0.9 to 3.3 us."""
GLOO_OVERHEAD_S, GLOO_STEP_S = 1e-4, 8.6e-5
"""Measured with torch 2.13 over loopback on a busy two-core machine: a send of 1 KiB takes 62 to 120 us, an all-reduce
of two ranks, two steps, 215 to 374."""
_TCP_SHARE = 0.95
"""Share of a line's rate that is left for data: frames of 1538 bytes carry 1460."""


@dataclass(frozen=True)
class SheetModel:
    """Closed forms take what libraries make of a sheet's numbers."""

    overhead_s: float = _START[0]
    """Seconds of launch and of waiting for all, whatever is sent."""
    step_factor: float = _START[1]
    """Seconds of a step by seconds of the sheet."""
    efficiency: float = _START[2]
    """Share of the sheet's bandwidth that long messages reach."""
    bus_efficiency: float = _START[3]
    """The same where devices share a bus."""

    def seconds(self, collective: Collective, link: Interconnect, shared_by: float = 1.0) -> float:
        """Compute the seconds of a collective on a link that ``shared_by`` devices share; gloo has its own numbers."""
        if collective.ranks == 1:
            return 0.0
        plain = link.alpha_beta(shared_by)
        if collective.backend == "gloo":
            share = _TCP_SHARE if link.topology == "network" else 1.0
            wire = AlphaBeta(link.latency_s or GLOO_STEP_S, plain.beta_s / share)
            return GLOO_OVERHEAD_S + ring(collective, wire)  # it has no other algorithm by default
        share = self.bus_efficiency if link.topology == "bus" else self.efficiency
        if link.reached_gbps is not None:
            share = link.reached_gbps / link.bandwidth_gbps
        wire = AlphaBeta(self.step_factor * (link.latency_s or _GPU_STEP_S), plain.beta_s / share)
        return self.overhead_s + best(collective, wire)

    @classmethod
    def fit(cls, curves: Sequence[Curve]) -> SheetModel:
        """Fit to the curves of one node whose link is known; each weighs the same, and so does each relative error.

        Raises ``DataError`` where there is none.
        """
        seen = [curve for curve in curves if follows_sheet(curve)]
        if not seen:
            raise DataError("no measured curve of a known link: nothing to fit the datasheet model to")
        from scipy.optimize import least_squares  # answers need none of it

        alphas, betas = [], []
        for curve in seen:
            for size in curve.bytes:
                asked = Collective(curve.kind, int(size), curve.ranks, curve.backend)
                alphas.append(_both(asked, AlphaBeta(1.0, 0.0)))
                betas.append(_both(asked, AlphaBeta(0.0, 1.0)))
        count, sheets = [len(curve.bytes) for curve in seen], [interconnect.get(str(curve.link)) for curve in seen]
        alpha = np.array(alphas) * np.repeat([sheet.latency_s or _GPU_STEP_S for sheet in sheets], count)[:, None]
        beta = np.array(betas) * np.repeat([sheet.alpha_beta().beta_s for sheet in sheets], count)[:, None]
        on_bus = np.repeat([sheet.topology == "bus" for sheet in sheets], count)
        weights, measured = np.repeat(np.array(count) ** -0.5, count), np.concatenate([c.latency_s for c in seen])

        def residuals(logs: np.ndarray) -> np.ndarray:
            overhead, factor, share, bus_share = np.exp(logs)
            wire = factor * alpha + beta / np.where(on_bus, bus_share, share)[:, None]
            return weights * np.log((overhead + wire.min(1)) / measured)

        lowest, highest = np.log([1e-7, 0.05, 0.02, 0.02]), np.log([1e-3, 20.0, 1.0, 1.0])
        found = least_squares(residuals, np.log(_START), bounds=(lowest, highest), loss="soft_l1", f_scale=0.1)
        return cls(*map(float, np.exp(found.x)))


def follows_sheet(curve: Curve) -> bool:
    """Return True if the curve's link is known and all of its ranks have it: a bridge joins two."""
    if curve.link is None or curve.nodes > 1:
        return False
    return curve.ranks <= 2 or interconnect.get(curve.link).topology != "pair"


def _both(asked: Collective, link: AlphaBeta) -> tuple[float, float]:
    """Ring and tree; the ring twice where there is no tree."""
    around = ring(asked, link)
    return around, around if asked.kind in ("all_to_all", "send_recv") else tree(asked, link)
