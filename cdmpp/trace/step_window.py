"""StepWindow: where the host's marks, graph launches or nothing at all begin and end the steps of a trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cdmpp.errors import DataError, some
from cdmpp.trace.cadence import graph_repeats, kernel_repeats
from cdmpp.trace.event import Event
from cdmpp.trace.scanned import Scanned

_GRAPH = "graphlaunch"
_SHOWN = 8


class StepWindow(NamedTuple):
    """This is one step of the host."""

    number: int
    start: float
    """Microseconds, by the clock of the rank."""
    end: float

    @property
    def length(self) -> float:
        """It takes so many microseconds."""
        return self.end - self.start


def places(moments: np.ndarray, windows: Sequence[StepWindow]) -> np.ndarray:
    """Return the place of the window in which each moment lies; -1 where it lies in none."""
    ends = np.array([*(window.end for window in windows), -np.inf])
    found = np.searchsorted(np.array([window.start for window in windows]), moments, "right") - 1
    return np.where(moments < ends[found], found, -1)


def step_windows(scanned: Scanned, mark: str | None) -> tuple[list[StepWindow], str]:
    """Return steps by start, and what says so.

    Args:
        scanned: one rank's events.
        mark: a regular expression; host events whose names it finds begin a step. None: ``ProfilerStep#``, else
            launches of graphs, else repeats of all kernels, else the whole trace is one step.

    Raises:
        DataError: a mark that no event has, or a trace with nothing in it.
    """
    if mark is not None:
        marks = [event for event in scanned.host if re.search(mark, event.name)]
        if not marks:
            names = Counter(e.name for e in scanned.host if e.category == "user_annotation") or Counter(
                e.name for e in scanned.host
            )
            raise DataError(
                f"{scanned.path} has no host event with {mark!r} in its name, but "
                f"{some([name for name, _ in names.most_common()], ', ', _SHOWN) or 'none at all'}"
            )
        return _between(_outermost(marks)), f"marks {mark!r}"
    if marks := [event for event in scanned.host if event.is_mark]:
        numbered = [(_number(event, place), event) for place, event in enumerate(_outermost(marks))]
        found = []
        for (number, event), following in zip(numbered, [*numbered[1:], None], strict=True):
            is_next = following is not None and following[0] == number + 1
            found.append(StepWindow(number, event.ts, following[1].ts if is_next and following else event.end))
        return found, "ProfilerStep marks"
    graphs = sorted((one for one in scanned.launches if _GRAPH in one.name.lower()), key=lambda one: one.ts)
    if _are_alike(scanned, graphs):
        return _between(graphs), "graph launches"
    if graphs and (repeats := graph_repeats(scanned, graphs)):
        return _spans(repeats), f"graph launches, {len(graphs) // len(repeats)} a step"
    if repeats := kernel_repeats(scanned):
        return _spans(repeats), f"cadence: {len(repeats):,} repeats"
    ends = [max(event.end for event in part) for part in (scanned.device, scanned.launches, scanned.host) if part]
    if not ends:
        raise DataError(f"{scanned.path} has no steps: it has neither operators nor work of a device")
    return [StepWindow(0, scanned.begin_us, max(ends))], ""


def _outermost(marks: Sequence[Event]) -> list[Event]:
    """Marks by start, without those inside another, or at the same time on another thread."""
    found: list[Event] = []
    for event in sorted(marks, key=lambda one: (one.ts, -one.dur)):
        if not found or event.ts >= found[-1].end:
            found.append(event)
    return found


def _between(marks: Sequence[Event]) -> list[StepWindow]:
    """From mark to mark; the last as long as the median of the others, or as itself where there are none."""
    gaps = sorted(b.ts - a.ts for a, b in zip(marks, marks[1:], strict=False))
    last = marks[-1].ts + gaps[len(gaps) // 2] if gaps else marks[-1].end
    ends = [*(event.ts for event in marks[1:]), last]
    return [StepWindow(place, event.ts, end) for place, (event, end) in enumerate(zip(marks, ends, strict=True))]


def _number(event: Event, place: int) -> int:
    digits = event.name.partition("#")[2]
    return int(digits[:18]) if digits.isdecimal() else place


def _spans(found: Sequence[tuple[float, float]]) -> list[StepWindow]:
    return [StepWindow(place, begin, end) for place, (begin, end) in enumerate(found)]


def _are_alike(scanned: Scanned, graphs: Sequence[Event]) -> bool:
    """True for several graphs, each of which starts as many kernels as the others, to a tenth."""
    counts = Counter(event.correlation for event in scanned.device) if graphs else Counter[object]()
    sizes = [counts[launch.correlation] for launch in graphs]
    return len(sizes) > 1 and min(sizes) >= 0.9 * max(sizes)
