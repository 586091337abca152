"""Flow: bytes on links that several tasks share. Who joins or leaves a link changes how fast the others go."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cdmpp.errors import DataError


@dataclass(frozen=True)
class Flow:
    """A task sends these bytes."""

    bytes: float
    """On the wire."""
    links: tuple[str, ...]
    """All that it crosses, such as the way out of one machine and the way into another."""
    count: int = 1
    """So many equal flows go side by side; each has ``bytes``."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bytes) and self.bytes >= 0) or not self.links:
            raise DataError(f"a flow of {self.bytes} bytes over {self.links}: expected bytes from 0 up, on some link")
        if self.count < 1:
            raise DataError(f"{self.count} equal flows over {self.links}: expected one or more")
