"""Links of equal ranks: networks that carry exchanges, and the link of a device to the memory of its host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from cdmpp.collectives.interconnect import Interconnect
from cdmpp.collectives.topology import Topology
from cdmpp.plans.overlap import Floats
from cdmpp.platform.limits import Limits

_BYTES = Limits(0, 1e15, "bytes", whole=False)


@dataclass(frozen=True)
class Tier:
    """One of the networks that join ranks."""

    seconds: Callable[[str, Floats, int], Floats]
    """Kind of exchange (``send_recv``, ``all_reduce``, ``reduce_scatter``, ``all_gather``), bytes and ranks -> seconds
    of it by itself."""
    ranks: int
    """Ranks that it joins at most."""
    is_filled: bool = False
    """True if a job must use it as a whole: exchanges whose ranks divide ``ranks``."""
    device_share: float = 0.0
    """Part of a device that an exchange takes from what computes meanwhile."""

    def joins(self, ranks: int) -> bool:
        """Return True if it can carry exchanges between so many ranks."""
        return ranks <= self.ranks and not (self.is_filled and self.ranks % ranks)


@dataclass(frozen=True)
class Host:
    """The memory of the host, and the link to it, which carries both directions at once."""

    seconds: Callable[[Floats], Floats]
    """Bytes -> seconds in one direction."""
    memory_bytes: float
    """Bytes of it for each device."""

    @classmethod
    def over(cls, link: Interconnect, memory_bytes: float) -> Self:
        """Reach the memory of a host over a link as its sheet describes it, such as ``pcie5``.

        Args:
            link: of one device, that no other shares.
            memory_bytes: bytes of the host's memory for each device. ``UsageError`` where they cannot be.
        """
        memory_bytes, line = _BYTES.fitting("memory_bytes", memory_bytes), link.alpha_beta()

        def seconds(sizes: Floats) -> Floats:
            return np.where(sizes > 0, line.alpha_s + line.beta_s * sizes, 0.0)

        return cls(seconds, memory_bytes)


def tiers_of(topology: Topology) -> tuple[Tier, ...]:
    """Return the links inside a node, which a job uses as a whole, and those between nodes, if there are several.

    A group inside a node has ranks next to each other; one between nodes has a rank in each, or as few as it can.
    """
    own = topology.ranks // topology.nodes
    near = Tier(_apart(topology, 1), own, is_filled=True)
    return (near, Tier(_apart(topology, own), topology.ranks)) if topology.nodes > 1 else (near,)


def _apart(topology: Topology, step: int) -> Callable[[str, Floats, int], Floats]:
    """Seconds of exchanges of ranks that lie ``step`` numbers apart, or nearer where so many ranks do not."""

    def seconds(kind: str, sizes: Floats, ranks: int) -> Floats:
        members = tuple(range(0, topology.ranks, min(step, topology.ranks // ranks)))[:ranks]
        distinct, places = np.unique(sizes, return_inverse=True)  # few differ
        return np.asarray(topology.latency_s(kind, distinct, members), np.float64)[places.ravel()]

    return seconds
