"""Scanned: the events of one file by what they are, with those that cannot be used counted and named."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.trace.event import Broken, Event, event_of, is_unused, kind_of_category
from cdmpp.trace.event_file import EventFile


@dataclass
class Scanned:
    """This is one file. Events are in the order of the file."""

    path: Path
    keys: dict[str, Any] = field(default_factory=dict)
    """What the file says next to its events."""
    device: list[Event] = field(default_factory=list)
    """Work of a device: it has a stream, whatever its category."""
    launches: list[Event] = field(default_factory=list)
    """Calls of any runtime or driver."""
    syncs: list[Event] = field(default_factory=list)
    """Waits of a stream or of the host, where the profiler recorded them."""
    host: list[Event] = field(default_factory=list)
    """Operators and annotations."""
    counts: Counter = field(default_factory=Counter)
    """Category -> spans in the file."""
    others: Counter = field(default_factory=Counter)
    """Phase of the trace format -> events that are no spans."""
    broken: list[Broken] = field(default_factory=list)
    base_us: float = 0.0
    """Moment of the trace from which times are counted, so that they keep their digits."""
    texts: int = 0
    """Spans whose numbers were written as text."""

    def add(self, event: Event | Broken, kind: str, parsed: dict[str, Any]) -> None:
        """Take an event, unless it is of a call that neither starts nor awaits work."""
        if isinstance(event, Broken):
            self.broken.append(event)
            return
        self.texts += type(parsed["ts"]) is str or type(parsed["dur"]) is str
        if kind == "device":
            self.device.append(event)
        elif kind == "host":
            self.host.append(event)
        elif kind == "sync":
            self.syncs.append(event)
        elif not is_unused(event.name):
            self.launches.append(event)

    @property
    def begin_us(self) -> float:
        """This is the earliest time in the file."""
        each = (part for part in (self.device, self.launches, self.host) if part)
        return min((min(event.ts for event in part) for part in each), default=0.0)

    @property
    def events(self) -> int:
        """The file has so many events."""
        return self.counts.total() + self.others.total()


def scan(path: Path, progress: bool = False, base_us: float | None = None) -> Scanned:
    """Read a file in one pass, with times counted from ``base_us``, or from its first event.

    Raises:
        DataError: it is no trace.
    """
    with without_collection():
        return _scan(path, progress, base_us)


@contextmanager
def without_collection() -> Iterator[None]:
    """Leave out Python's search for circles of objects: events hold none, and it takes longer than reading."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _scan(path: Path, progress: bool, base_us: float | None) -> Scanned:
    file, found = EventFile(path, progress), Scanned(path)
    kinds, same = dict[str, str](), dict[object, object]()
    """Kinds of categories, and one object for equal names and numbers of threads."""
    for batch in file.batches():
        for parsed in batch:
            if type(parsed) is not dict:
                found.others["no event"] += 1
                found.broken.append(Broken("", "an event that is no JSON object", None, None))
                continue
            if parsed.get("ph") != "X":
                found.others[str(parsed.get("ph"))[:20]] += 1
                continue
            category = parsed.get("cat")
            if type(category) is not str:
                category = parsed["cat"] = ""
            found.counts[category] += 1
            kind = kinds.get(category)
            if kind is None:
                kind = _kind(parsed, category, kinds)
            if not kind:
                continue
            if base_us is None:
                base_us = _begin_us(parsed.get("ts"))
            _shared(parsed, same)
            found.add(event_of(parsed, kind, base_us), kind, parsed)
    if found.others["no event"] and found.others["no event"] == found.events:
        raise DataError(f"{path} is no trace: none of its {found.events:,} events is a JSON object")
    found.keys, found.base_us = file.keys, base_us or 0.0
    return found


def _kind(parsed: dict[str, Any], category: str, kinds: dict[str, str]) -> str:
    """The kind of a category; one of its own is a device's where an event has a stream."""
    kind = kind_of_category(category, False)
    if kind or not kind_of_category(category, True):
        kinds[category] = kind
        return kind
    args = parsed.get("args")
    return kind_of_category(category, type(args) is dict and "stream" in args)


def _shared(parsed: dict[str, Any], same: dict[object, object]) -> None:
    for key in ("name", "cat", "tid", "pid"):
        value = parsed.get(key)
        if type(value) is str or type(value) is int:
            parsed[key] = same.setdefault(value, value)


def _begin_us(begin: Any) -> float:
    return float(begin) if type(begin) in (int, float) and abs(begin) < 1e18 else 0.0
