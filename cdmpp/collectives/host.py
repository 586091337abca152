"""Host: the memory of a node, and the links of its devices to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cdmpp.collectives.interconnect import Interconnect
from cdmpp.platform.limits import Limits, check_fields, numbers

REACHED = 0.8
"""Share of the bandwidth of a link's sheet that copies of pinned memory reach. Users report 12.2 to 12.9 of 15.75 GB/s
(gearshifft, pull request 82), 25 of 31.5 (BaM, issue 54) and 52.8 of 63 (nvbandwidth, issue 24): 0.77 to 0.84."""
MEMORY_REACHED = 0.8
"""Share of the bandwidth of its memory that the processors reach: assumed, as STREAM does on full sockets."""


@dataclass(frozen=True)
class Host:
    """Devices copy to and from it, both directions at once, and its processors work on what lies there."""

    LIMITS: ClassVar = {
        "memory_gb": numbers(1, 10**6, "GB"),
        "memory_gbps": numbers(1, 10**5, "GB/s"),
        "devices_per_link": Limits(1, 64),
    }

    link: Interconnect
    """The link of a device to it."""
    memory_gb: float
    """GB (1e9 bytes) of a node."""
    memory_gbps: float
    """GB/s of the memory of a node, by its sheet."""
    devices_per_link: int = 1
    """Devices whose switch has one such link to the processors."""

    def __post_init__(self) -> None:
        check_fields(self, "host.")

    def copy_s(self, n_bytes: float) -> float:
        """Return the seconds of a copy in one direction while all devices copy as much."""
        line = self.link.alpha_beta(self.devices_per_link)
        return line.alpha_s + n_bytes * line.beta_s / REACHED if n_bytes else 0.0

    def passed_s(self, n_bytes: float, devices: int) -> float:
        """Return the seconds in which its processors read and write ``n_bytes`` for each of so many devices at once."""
        return devices * n_bytes / (1e9 * self.memory_gbps * MEMORY_REACHED)
