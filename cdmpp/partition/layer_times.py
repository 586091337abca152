"""LayerTimes: what the layers of a partition take on one device, from the step of one rank there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import UsageError
from cdmpp.partition.devices import StageDevice
from cdmpp.partition.graph import PartitionGraph
from cdmpp.plans.cut_places import CutPlaces
from cdmpp.steps.step_graph import RankGraph


@dataclass(frozen=True, eq=False)
class LayerTimes:
    """Seconds of one micro-batch at full speed; an array has one number a layer."""

    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    update_s: float

    @classmethod
    def of(cls, rank: RankGraph) -> LayerTimes:
        """Sum up the ops of a rank: delays and gaps of the host belong to their op."""
        on = CutPlaces(rank)
        seconds = [op.delay_s + op.duration_s + op.gap_s for op in rank.ops]
        forward = [seconds[place] for place in on.forward]
        backward = [math.fsum(seconds[one] for one in on.backward_of.get(place, ())) for place in on.forward]
        update_s = math.fsum(
            taken for taken, op in zip(seconds, rank.ops, strict=True) if op.phase == "update"
        )  # fmt: skip
        return cls(np.array(forward), np.array(backward), update_s)

    @property
    def step_s(self) -> float:
        """Return the seconds of both passes and the update of the whole network."""
        return float(self.forward_s.sum() + self.backward_s.sum()) + self.update_s

    def scaled(self, factor: float) -> LayerTimes:
        """Return the times of a device that takes ``factor`` times as long for everything."""
        return LayerTimes(factor * self.forward_s, factor * self.backward_s, factor * self.update_s)

    def device(self, name: str, link: AlphaBeta, memory_bytes: float, copy_bytes_per_s: float) -> StageDevice:
        """Return a device with these times."""
        return StageDevice(
            name, self.forward_s, self.backward_s, link, self.update_s, memory_bytes, copy_bytes_per_s
        )  # fmt: skip


def check_same(graph: PartitionGraph, rank: RankGraph, name: str, first: str) -> None:
    """Raise ``UsageError`` unless a rank on another device runs the same layers."""
    own = [op.name for op in rank.ops if op.phase == "forward"]
    known = [one.name for one in graph.layers]
    if own != known:
        odd = next((pair for pair in zip(own, known, strict=False) if pair[0] != pair[1]), None)
        told = f"{odd[0]} in place of {odd[1]}" if odd else f"{len(own)} layers in place of {len(known)}"
        raise UsageError(
            f"the network runs other operators on {name} than on {first}, {told}: a cut means the same only on devices "
            "of one kind, CPUs or GPUs"
        )
