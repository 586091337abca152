"""Flow: bytes on links that several tasks share. Who joins or leaves a link changes how fast the others go."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cdmpp.errors import DataError
from cdmpp.simulate.key import Key


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


@dataclass
class _Moving:
    left_bytes: float
    links: tuple[str, ...]
    since_s: float
    rate: float = 0.0
    end_s: float = math.inf


class SharedLinks:
    """Each link divides its rate evenly among its flows; a flow goes as fast as the tightest of its links lets it.

    What a flow leaves of its share on the other links nobody else takes.
    """

    def __init__(self, rates: Mapping[str, float]) -> None:
        """``rates``: link -> bytes a second."""
        for link, rate in rates.items():
            if not (math.isfinite(rate) and rate > 0):
                raise DataError(f"link {link!r} has a rate of {rate} bytes a second: it must be finite and positive")
        self._rates = rates
        self._moving: dict[Key, _Moving] = {}
        self._on: dict[str, dict[Key, int]] = {link: {} for link in rates}
        """Link -> its flows, and how many each stands for."""
        self.changed: dict[str, None] = {}
        """Links that a flow has joined or left since ``rerated`` was asked."""

    def join(self, key: Key, flow: Flow, now_s: float) -> None:
        """Add a flow from ``now_s`` on; ``DataError`` where a link has no rate."""
        for link in flow.links:
            if link not in self._on:
                raise DataError(f"task {key!r} sends over link {link!r}, whose rate is not given")
            self._on[link][key] = flow.count
            self.changed[link] = None
        self._moving[key] = _Moving(flow.bytes, flow.links, now_s)

    def ends(self, key: Key, now_s: float) -> bool:
        """Return True if it is done at ``now_s``, as was said last; it then has left."""
        moving = self._moving.get(key)
        if moving is None or moving.end_s != now_s:
            return False
        for link in self._moving.pop(key).links:
            del self._on[link][key]
            self.changed[link] = None
        return True

    def rerated(self, now_s: float) -> Iterator[tuple[Key, float]]:
        """Return flows that go at another rate from ``now_s`` on, and when they will be done."""
        touched = dict.fromkeys(key for link in self.changed for key in self._on[link])
        self.changed.clear()
        for key in touched:
            moving = self._moving[key]
            rate = min(self._rates[link] / sum(self._on[link].values()) for link in moving.links)
            if rate != moving.rate:
                moving.left_bytes = max(0.0, moving.left_bytes - moving.rate * (now_s - moving.since_s))
                moving.since_s, moving.rate = now_s, rate
                moving.end_s = now_s + moving.left_bytes / rate
                yield key, moving.end_s
