"""Data+spatial parallelism as ParaDL's authors run it: messages through the host inside nodes, leaders between them.

What is exchanged, and over which link, is told by their report (halos and the gather of activations go through MPI and
the host; gradients are summed inside each node, then between one leader of each node), by their tool (commit ce36803:
what a message without GPUDirect takes) and by their code (halos of half a kernel, poolings included).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.plans.layer_table import LayerTable
from benchmarks.plans.paradl_data import GPUS_PER_NODE, INSIDE, between
from benchmarks.plans.scores import least_absolute, left_out
from cdmpp.collectives.algorithms import ring
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.plans.degrees import ParallelDegrees

_START_S, _PCIE = 3e-3 + 110e-9, 16e9
"""What a message through the host takes at least, which the tool's authors measured, and bytes a second of PCIe."""
HALO = AlphaBeta(_START_S, 2 * GPUS_PER_NODE / _PCIE)
"""All GPUs of a node send and receive at once."""
_GATHER = AlphaBeta(_START_S, 2 / _PCIE)


@dataclass(frozen=True)
class Parts:
    """What one step exchanges, before anything is fitted."""

    inside_s: float
    """Seconds of messages inside a node, by the tool's links."""
    steps: int
    """Messages of the leaders, one after the other."""
    start_s: float
    """Seconds that they take to start, by the tool's links."""
    bytes_s: float
    """Seconds of their bytes at the whole bandwidth of an adapter."""


def parts(table: LayerTable, batch: int, gpus: int) -> Parts:
    """Count what a step exchanges: ``batch`` examples a node, of which each GPU has a quarter of the image."""
    sent = table.work(batch, ParallelDegrees(spatial=GPUS_PER_NODE)).exchanges
    last = [one for one in table.layers if "space" in one.divides][-1]
    gathered = Collective("all_gather", table.item_bytes * batch * last.y_items, GPUS_PER_NODE)
    weights = table.item_bytes * sum(one.w_items for one in table.layers)
    summed = Collective("all_reduce", weights, GPUS_PER_NODE)
    leaders, far = Collective("all_reduce", weights, gpus // GPUS_PER_NODE), between(gpus)
    halos_s = sum(HALO.seconds(one.bytes) for one in sent)
    return Parts(
        halos_s + 2 * ring(gathered, _GATHER) + ring(summed, INSIDE),  # their gradient is scattered
        leaders.steps,
        leaders.steps * far.alpha_s,
        leaders.traffic_bytes * far.beta_s,
    )


@dataclass(frozen=True)
class Way:
    """One way to fit measured seconds: which parts have a factor, and what the others take."""

    inside: bool = False
    """Messages inside nodes have a factor."""
    start: bool = False
    """So have the messages of the leaders, each by itself."""
    share: float | None = None
    """The share of the bandwidth that leaders reach; None: it is fitted."""

    def columns(self, own: Parts) -> tuple[list[float], float]:
        """Return what factors multiply, and seconds that none does."""
        rated = [
            (own.inside_s, self.inside),
            (own.steps if self.start else own.start_s, self.start),
            (own.bytes_s / (self.share or 1.0), self.share is None),
        ]
        return [value for value, free in rated if free], sum(value for value, free in rated if not free)

    def fitted(self, own: Sequence[Parts], measured_s: Sequence[float]) -> np.ndarray:
        """Fit the factors, none below 0, to the least sum of relative errors."""
        columns, fixed = zip(*map(self.columns, own), strict=True)
        return least_absolute(np.array(columns), np.array(fixed), np.array(measured_s))

    def predicted_s(self, factors: np.ndarray, own: Parts) -> float:
        """Predict the seconds of one step's exchanges."""
        columns, fixed = self.columns(own)
        return float(np.dot(columns, factors)) + fixed

    def words(self, factors: Sequence[float]) -> str:
        """Say what was fitted."""
        told = ["messages inside a node x {:.2f}"] * self.inside + ["{:.4f} s a message of leaders"] * self.start
        return ", ".join(told + ["{:.1f} times the seconds of their bytes"] * (self.share is None)).format(*factors)

    def left_out_error(self, own: Sequence[Parts], measured_s: Sequence[float]) -> float:
        """Mean relative error where each row is predicted by a fit to the others."""
        found = np.asarray(measured_s)

        def predict(seen: np.ndarray, judged: int) -> float:
            few = self.fitted([one for one, is_seen in zip(own, seen, strict=True) if is_seen], found[seen])
            return self.predicted_s(few, own[judged])

        return float(np.mean(np.abs(left_out(range(len(own)), predict) / found - 1.0)))


def ways(share: float) -> Mapping[str, Way]:
    """Name the ways that are compared; ``share`` is that of the data parallel run."""
    return {
        "leaders' bandwidth": Way(),
        "leaders' bandwidth and start-up": Way(start=True),
        "messages inside": Way(inside=True, share=share),
        "messages inside and leaders' start-up": Way(inside=True, start=True, share=share),
        "messages inside and leaders' bandwidth": Way(inside=True),
    }
