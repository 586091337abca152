"""Timeline: when everything of a result ran, for the trace viewers of Chrome and Perfetto, and for pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.simulate.timeline import Timeline

MOST = 1200
"""Spans that are drawn one by one; of more, those that follow each other are merged."""


@dataclass(frozen=True)
class TimelineSpan:
    """A span is one thing that ran, with its place and its times."""

    row: str
    """The resource it ran on: a stream, an engine, a link."""
    name: str
    kind: str
    """Op class, phase or kind of exchange: what the colour tells."""
    start_s: float
    end_s: float
    is_critical: bool = False
    """True if the end of the run waited for it."""
    process: str = ""
    """The rank; empty where there is only one."""


@dataclass(frozen=True)
class MergedSpan:
    """This is one span, or several of a row that follow each other."""

    row: str
    name: str
    """The name of the first span."""
    kind: str
    """The kind that takes most of it."""
    count: int
    """The number of spans it stands for."""
    start_s: float
    end_s: float


def spans_of(timeline: Timeline) -> tuple[TimelineSpan, ...]:
    """Make a span for each task and resource of a simulated run; tasks without a resource are not shown."""
    critical = timeline.critical_keys
    return tuple(
        TimelineSpan(
            str(resource), str(span.task.key), span.task.label, span.start_s, span.end_s, span.task.key in critical
        )
        for span in timeline.spans.values()
        for resource in span.task.resources
    )


def chrome_trace(spans: Sequence[TimelineSpan]) -> dict[str, Any]:
    """Make a process for each rank and a thread for each row; times in microseconds from the first span on."""
    processes = {name: pid for pid, name in enumerate(sorted({span.process for span in spans}, key=_natural))}
    rows = {pair: tid for tid, pair in enumerate(sorted({(span.process, span.row) for span in spans}, key=_place))}
    named = [_named("process_name", pid, 0, name) for name, pid in processes.items() if name]
    named += [_named("thread_name", processes[process], tid, row) for (process, row), tid in rows.items()]
    first_s = min((span.start_s for span in spans), default=0.0)
    events = [
        {
            "ph": "X",
            "name": span.name,
            "cat": span.kind or "task",
            "pid": processes[span.process],
            "tid": rows[span.process, span.row],
            "ts": 1e6 * (span.start_s - first_s),
            "dur": 1e6 * (span.end_s - span.start_s),
            "args": {"critical": span.is_critical},
        }
        for span in spans
    ]
    return {"traceEvents": [*named, *events], "displayTimeUnit": "ms"}


def by_row(spans: Sequence[TimelineSpan]) -> dict[str, list[TimelineSpan]]:
    """Group spans by name of a row, with its process, in the order of their starts."""
    found: dict[tuple[str, str], list[TimelineSpan]] = {}
    for span in spans:
        found.setdefault((span.process, span.row), []).append(span)
    return {
        " ".join(filter(None, key)): sorted(found[key], key=lambda one: one.start_s)
        for key in sorted(found, key=_place)
    }


def merge_short_spans(rows: dict[str, list[TimelineSpan]], end_s: float) -> list[MergedSpan]:
    """Keep at most about twice ``MOST`` spans, row by row; ``end_s`` is the end of the run."""
    count = sum(map(len, rows.values()))
    least_s = end_s * len(rows) / MOST if count > MOST else 0.0
    return [merged for row, spans in rows.items() for merged in _merged(row, spans, least_s)]


def _merged(row: str, spans: Sequence[TimelineSpan], least_s: float) -> list[MergedSpan]:
    groups: list[list[TimelineSpan]] = []
    for span in spans:
        if groups and span.end_s - groups[-1][0].start_s <= least_s:
            groups[-1].append(span)
        else:
            groups.append([span])
    return [_one(row, group) for group in groups]


def _one(row: str, spans: Sequence[TimelineSpan]) -> MergedSpan:
    seconds = seconds_by_kind(spans)
    end_s = max(span.end_s for span in spans)
    return MergedSpan(row, spans[0].name, next(iter(seconds)), len(spans), spans[0].start_s, end_s)


def seconds_by_kind(spans: Sequence[TimelineSpan]) -> dict[str, float]:
    """Sum the seconds of spans by kind, most first."""
    seconds: dict[str, float] = {}
    for span in spans:
        kind = span.kind or "other"
        seconds[kind] = seconds.get(kind, 0.0) + span.end_s - span.start_s
    return dict(sorted(seconds.items(), key=lambda entry: -entry[1]))


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Order in which ``rank 10`` comes after ``rank 9``."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name))


def _place(pair: tuple[str, str]) -> tuple[object, ...]:
    """Ranks in order, what computes before what communicates."""
    process, row = pair
    return _natural(process), not row.startswith("compute"), _natural(row)
