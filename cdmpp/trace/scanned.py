"""Scanned: the events of one file by what they are, with those that cannot be used counted and named."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.trace.event import Broken, Event, event_of, kind_of_category
from cdmpp.trace.event_file import EventFile


@dataclass
class Scanned:
    """One file. Events are in the order of the file."""

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
    texts: int = 0
    """Spans whose numbers were written as text."""

    @property
    def begin_us(self) -> float:
        """The earliest time in the file."""
        each = (part for part in (self.device, self.launches, self.host) if part)
        return min((min(event.ts for event in part) for part in each), default=0.0)

    @property
    def events(self) -> int:
        """All events of the file."""
        return self.counts.total() + self.others.total()


def scan(path: Path, progress: bool = False) -> Scanned:
    """Read a file in one pass; ``DataError`` where it is no trace."""
    was_on = gc.isenabled()
    gc.disable()  # events hold no circles, and looking for some takes longer than reading
    try:
        return _scan(path, progress)
    finally:
        if was_on:
            gc.enable()


def _scan(path: Path, progress: bool) -> Scanned:
    file, found = EventFile(path, progress), Scanned(path)
    kinds: dict[str, str] = {}
    names: dict[str, str] = {}
    into = {"device": found.device, "launch": found.launches, "sync": found.syncs, "host": found.host}
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
                kind = kind_of_category(category, False)
                if kind or not kind_of_category(category, True):
                    kinds[category] = kind
                else:  # a category of its own: it is a device's where it has a stream
                    args = parsed.get("args")
                    kind = kind_of_category(category, type(args) is dict and "stream" in args)
            if not kind:
                continue
            event = event_of(parsed, kind)
            if isinstance(event, Broken):
                found.broken.append(event)
                continue
            found.texts += type(parsed["ts"]) is str or type(parsed["dur"]) is str
            name = names.setdefault(event.name, event.name)
            into[kind].append(event if name is event.name else event._replace(name=name))
    found.keys = file.keys
    return found
