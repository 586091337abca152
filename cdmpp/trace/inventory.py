"""Inventory: what was read of a trace, as a careful reader would count it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CategoryCount:
    """One category has so many spans. Kept, left over and lost add up to all."""

    category: str
    events: int
    kept: int
    """In a step that is answered from."""
    left_over: int
    """In no step, or of a kind that no question needs."""
    lost: int
    """Broken, or in a step that is left out because it is not whole."""


@dataclass(frozen=True)
class StreamUse:
    """This is one stream of a device."""

    stream: str
    events: int
    busy_s: float
    overlaps: int
    """Events that begin before the one before has ended."""


@dataclass(frozen=True)
class StepLength:
    """One step takes so long."""

    number: int
    host_s: float
    """Seconds between the marks of the host."""
    device_s: float
    """Seconds from the first event of the device to the end of the last."""
    events: int
    """Events of the device."""
    lost: str = ""
    """Why it is left out; empty where it is not."""


@dataclass(frozen=True)
class CollectiveCount:
    """The steps that are kept have these collectives of one kind."""

    kind: str
    count: int
    known: int
    """With known bytes."""
    bytes: int
    """Bytes of those."""


@dataclass(frozen=True)
class Breakdown:
    """A device spends its time so between its first and its last event."""

    compute_s: float
    """Some kernel that is neither a collective nor a copy runs."""
    exposed_s: float
    """Only collectives or copies do."""
    idle_s: float
    """Nothing does."""


@dataclass(frozen=True)
class Inventory:
    """One file holds these events."""

    source: str = ""
    rank: int = 0
    world_size: int = 1
    events: int = 0
    """All events of the file, those that are no spans included."""
    steps_by: str = ""
    """What says where steps begin; empty: nothing does, so that the whole trace is one."""
    categories: tuple[CategoryCount, ...] = ()
    device: CategoryCount = CategoryCount("device", 0, 0, 0, 0)
    """All events of devices."""
    streams: tuple[StreamUse, ...] = ()
    steps: tuple[StepLength, ...] = ()
    collectives: tuple[CollectiveCount, ...] = ()
    breakdown: Breakdown = Breakdown(0.0, 0.0, 0.0)
    warnings: tuple[str, ...] = ()
    """What was read with a doubt, or not at all."""
