"""Work of a device by step: kernels, copies and collectives, matched to the launches of the host."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cdmpp.trace.event import Event
from cdmpp.trace.exchange_events import is_collective
from cdmpp.trace.scanned import Scanned
from cdmpp.trace.step_window import StepWindow

_NO_STEP = -1


class Work(NamedTuple):
    """This is one event of a device."""

    event: Event
    stream: str
    """The queue that it runs in, named as the trace does."""
    launch: Event | None
    """The call that started it; None where that is not in the trace."""
    is_collective: bool

    @property
    def launched(self) -> float:
        """The host launched it at this microsecond; its own start where that is not in the trace."""
        return self.event.ts if self.launch is None else self.launch.ts


@dataclass
class DeviceWork:
    """This is all work of one rank."""

    steps: list[list[Work]]
    """One list for each step, by launch."""
    left_over: list[Work]
    """Work of no step: launched before the first one, between two, or after the last."""
    streams: dict[str, list[Work]]
    """All work of each stream, by start."""
    lost: list[str] = field(default_factory=list)
    """For each step why it is not whole; empty where it is."""
    unlaunched: int = 0
    """Events in a step that have no launch in the trace; their stream's order says where they belong."""


def device_work(scanned: Scanned, windows: Sequence[StepWindow]) -> DeviceWork:
    """Group work by step: that of a launch where it is known, else the step of its neighbours on its stream."""
    launches: dict[object, Event] = {one.correlation: one for one in scanned.launches if one.correlation is not None}
    streams: dict[str, list[Work]] = defaultdict(list)
    many = len({_device(event) for event in scanned.device}) > 1
    for event in scanned.device:
        if "wait_on_stream" in event.args:
            continue
        queue = event.tid if event.stream is None else event.stream
        stream = f"{_device(event)}:{queue}" if many else str(queue)
        launch = launches.get(event.correlation)
        streams[stream].append(Work(event, stream, launch, is_collective(event)))
    starts = [window.start for window in windows]
    steps: list[list[Work]] = [[] for _ in windows]
    found = DeviceWork(steps, [], dict(streams))
    for works in streams.values():
        works.sort(key=lambda one: one.event.ts)
        for work, place in zip(works, _places(works, starts, windows), strict=True):
            (steps[place] if place != _NO_STEP else found.left_over).append(work)
            found.unlaunched += place != _NO_STEP and work.launch is None
    for place, works in enumerate(steps):
        steps[place] = _by_launch(works)
    found.lost = _lost(scanned, found, launches, starts, windows)
    return found


def _by_launch(works: Sequence[Work]) -> list[Work]:
    """By launch, but never before what runs earlier on the same stream."""
    latest: dict[str, float] = {}
    ordered = list[tuple[float, float, int, Work]]()
    for work in sorted(works, key=lambda one: one.event.ts):
        latest[work.stream] = max(work.launched, latest.get(work.stream, work.launched))
        ordered.append((latest[work.stream], work.event.ts, len(ordered), work))
    return [work for *_, work in sorted(ordered, key=lambda row: row[:3])]


def _device(event: Event) -> object:
    return event.pid if event.device is None else event.device


def _place(moment: float, starts: Sequence[float], windows: Sequence[StepWindow]) -> int:
    place = bisect_right(starts, moment) - 1
    return place if place >= 0 and moment < windows[place].end else _NO_STEP


def _places(works: Sequence[Work], starts: Sequence[float], windows: Sequence[StepWindow]) -> list[int]:
    """The step of each event of a stream."""
    if all(work.launch is None for work in works):
        return [_place(work.event.ts, starts, windows) for work in works]
    places, last = [], _NO_STEP
    for work in works:
        if work.launch is not None:
            last = _place(work.launch.ts, starts, windows)
        places.append(last)
    return places


def _lost(
    scanned: Scanned, found: DeviceWork, launches: dict, starts: Sequence[float], windows: Sequence[StepWindow]
) -> list[str]:
    """Why a step is not whole: an event of it is broken, kernels were launched and are not there, or it has none."""
    lost = ["" if works else "it has no work of a device" for works in found.steps]
    for one in scanned.broken:
        launch = launches.get(one.correlation)
        moment = launch.ts if launch is not None else one.ts
        place = _NO_STEP if moment is None else _place(moment, starts, windows)
        if place != _NO_STEP:
            lost[place] = lost[place] or one.reason
    there = {event.correlation for event in scanned.device}
    broken = {one.correlation for one in scanned.broken}
    missing: Counter = Counter()
    captures = _captures(scanned)
    for correlation, launch in launches.items():
        if any(begin <= launch.ts < end for begin, end in captures.get(launch.tid, ())):
            continue  # a graph is captured: nothing runs
        if _starts_kernel(launch) and correlation not in there and correlation not in broken:
            missing[_place(launch.ts, starts, windows)] += 1
    for place, works in enumerate(found.steps):
        missing[place] -= sum(work.launch is None for work in works)
        if missing[place] > 0.01 * (len(works) + missing[place]):
            lost[place] = lost[place] or f"{missing[place]} of its launches have no kernel"
    return lost


def _captures(scanned: Scanned) -> dict[object, list[tuple[float, float]]]:
    """Thread -> spans in which it captures a graph."""
    found: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for one in sorted(scanned.launches, key=lambda event: event.ts):
        lower = one.name.lower()
        if "begincapture" in lower:
            found[one.tid].append((one.ts, math.inf))
        elif "endcapture" in lower and found[one.tid]:
            found[one.tid][-1] = (found[one.tid][-1][0], one.end)
    return found


def _starts_kernel(launch: Event) -> bool:
    name = launch.name.lower()
    return "launch" in name and not any(word in name for word in ("graph", "hostfunc", "attribute", "config"))
