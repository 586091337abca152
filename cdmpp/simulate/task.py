"""Task: something that takes time on resources once its inputs are there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cdmpp.errors import DataError
from cdmpp.platform.allocation import check_bytes
from cdmpp.simulate.flow import Flow
from cdmpp.simulate.key import Key


@dataclass(frozen=True, slots=True)
class Task:
    """A task is a node of a data-flow graph."""

    key: Key
    """Unique in its graph."""
    duration: float | Callable[[float], float]
    """Seconds; or asked when the task starts, with the time in seconds since the start of all. Before the first byte
    where it has a flow."""
    resources: tuple[Key, ...] = ()
    """Resources that it holds: an engine, a stream or a link; each runs one task at a time. None: it waits
    for its inputs alone."""
    after: tuple[Key, ...] = ()
    """Keys of the tasks whose ends it needs."""
    priority: int = 0
    """Order in a queue: the least goes first, then what was ready first, then what was given first."""
    gap_s: float = 0.0
    """Seconds after its end in which its resources stay busy: the launch of the next, a framework's overhead."""
    label: str = ""
    """The kind of work, for the critical path and the trace."""
    flow: Flow | None = None
    """The flow that it sends over shared links after its duration; it ends when all is there."""

    def __post_init__(self) -> None:
        for what, value in (("duration", self.duration), ("gap", self.gap_s)):
            if not (
                callable(value) or 0 <= value < math.inf
            ):  # the key is written out for a message only: it takes long
                check_seconds(value, f"{what} of task {self.key!r}")

    def seconds(self, now_s: float) -> float:
        """Return the time it takes from ``now_s``; ``DataError`` where what is asked answers nonsense."""
        if not callable(self.duration):
            return self.duration
        return check_seconds(self.duration(now_s), f"duration of task {self.key!r} at {now_s:g} s")


TASK_BYTES = 2048
"""The data of a task with its span in a timeline."""


def check_tasks(count: int, what: str, remedy: str) -> None:
    """Raise ``CdmppError`` where so many tasks do not fit into free memory."""
    check_bytes(f"{what}, {count:,} tasks,", TASK_BYTES * count, remedy)


def check_seconds(value: float, what: str) -> float:
    """Return ``value``; ``DataError`` where it is negative or not finite."""
    try:
        if 0 <= value < math.inf and value is not True and value is not False:
            return value
    except TypeError:
        pass
    raise DataError(f"the {what} is {value!r}: it must be a number, finite and not negative")
