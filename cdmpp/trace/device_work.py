"""Work of a device by step: kernels, copies and collectives, matched to the launches of the host."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cdmpp.trace.event import Event
from cdmpp.trace.exchange_events import is_collective
from cdmpp.trace.scanned import Scanned
from cdmpp.trace.step_window import StepWindow, places

_NO_STEP = -1


class Work(NamedTuple):
    """This is one event of a device."""

    event: Event
    stream: str
    """The queue that it runs in, named as the trace does."""
    launch: Event | None
    """The call that started it; None where that is not in the trace."""
    is_collective: bool
    launched: float
    """The host launched it at this microsecond; its own start where that is not in the trace."""


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
    names = dict[tuple[object, object], str]()
    for event in scanned.device:
        if event.args and "wait_on_stream" in event.args:
            continue
        key = _device(event), event.tid if event.stream is None else event.stream
        stream = names.get(key) or names.setdefault(key, f"{key[0]}:{key[1]}" if many else str(key[1]))
        launch = launches.get(event.correlation)
        launched = event.ts if launch is None else launch.ts
        streams[stream].append(Work(event, stream, launch, is_collective(event), launched))
    steps: list[list[Work]] = [[] for _ in windows]
    found = DeviceWork(steps, [], dict(streams))
    for works in streams.values():
        works.sort(key=lambda one: one.event.ts)
        for work, place in zip(works, _places(works, windows).tolist(), strict=True):
            (steps[place] if place != _NO_STEP else found.left_over).append(work)
            found.unlaunched += place != _NO_STEP and work.launch is None
    for place, works in enumerate(steps):
        steps[place] = _by_launch(works)
    found.lost = _lost(scanned, found, launches, windows)
    return found


def _by_launch(works: Sequence[Work]) -> list[Work]:
    """By launch, but never before what runs earlier on the same stream."""
    latest, each = dict[str, float](), list[float]()
    works = sorted(works, key=lambda one: one.event.ts)
    for work in works:
        latest[work.stream] = max(work.launched, latest.get(work.stream, work.launched))
        each.append(latest[work.stream])
    return [works[place] for place in np.argsort(each, kind="stable").tolist()]


def spans(works: Sequence[Work]) -> tuple[np.ndarray, np.ndarray]:
    """Return when each begins and ends, in microseconds."""
    begins = np.array([one.event.ts for one in works])
    return begins, begins + np.array([one.event.dur for one in works])


def _device(event: Event) -> object:
    return event.pid if event.device is None else event.device


def _places(works: Sequence[Work], windows: Sequence[StepWindow]) -> np.ndarray:
    """The step of each event of a stream."""
    found = places(np.array([work.launched for work in works]), windows)
    if all(work.launch is None for work in works):
        return found
    last = np.maximum.accumulate([-1 if work.launch is None else place for place, work in enumerate(works)])
    return np.where(last < 0, _NO_STEP, found[last])


def _lost(
    scanned: Scanned, found: DeviceWork, launches: dict[object, Event], windows: Sequence[StepWindow]
) -> list[str]:
    """Why a step is not whole: an event of it is broken, kernels were launched and are not there, or it has none."""
    lost = ["" if works else "it has no work of a device" for works in found.steps]
    for one in scanned.broken:
        launch = launches.get(one.correlation)
        moment = launch.ts if launch is not None else one.ts
        place = _NO_STEP if moment is None else int(places(np.array(moment), windows))
        if place != _NO_STEP:
            lost[place] = lost[place] or one.reason
    there = {one.correlation for events in (scanned.device, scanned.broken) for one in events}
    captures = _captures(scanned)
    alone = [
        launch.ts
        for launch in map(launches.__getitem__, launches.keys() - there)
        if _starts_kernel(launch.name)  # and no graph is captured, for which nothing runs
        and not any(begin <= launch.ts < end for begin, end in captures.get(launch.tid, ()))
    ]
    missing = Counter(places(np.array(alone), windows).tolist())
    for place, works in enumerate(found.steps):
        missing[place] -= sum(work.launch is None for work in works) if missing[place] else 0
        if missing[place] > 0.01 * (len(works) + missing[place]):
            lost[place] = lost[place] or f"{missing[place]} of its launches have no kernel"
    return lost


def _captures(scanned: Scanned) -> dict[object, list[tuple[float, float]]]:
    """Thread -> spans in which it captures a graph."""
    found: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for one in sorted((one for one in scanned.launches if "capture" in one.name.lower()), key=lambda event: event.ts):
        lower = one.name.lower()
        if "begincapture" in lower:
            found[one.tid].append((one.ts, math.inf))
        elif "endcapture" in lower and found[one.tid]:
            found[one.tid][-1] = (found[one.tid][-1][0], one.end)
    return found


@lru_cache(1 << 12)
def _starts_kernel(name: str) -> bool:
    name = name.lower()
    return "launch" in name and not any(word in name for word in ("graph", "hostfunc", "attribute", "config"))
