"""Links of equal ranks: networks that carry exchanges, and the link of a device to the memory of its host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdmpp.plans.overlap import Floats


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
