"""Blocks: a timeline with so few parts that they can be drawn, short calls beside each other as one."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.simulate.key import Key
from cdmpp.simulate.timeline import Span, Timeline

MOST = 1200
"""Calls that are drawn one by one; of more, those beside each other are joined."""


@dataclass(frozen=True)
class Block:
    """One call, or several of a resource that follow each other."""

    resource: Key
    name: str
    """Of the first call."""
    label: str
    """Op class that takes most of it."""
    calls: int
    start_s: float
    end_s: float


def blocks_of(run: Timeline) -> list[Block]:
    """At most about twice ``MOST``, resource by resource in the order of their starts."""
    spans: dict[Key, list[Span]] = {}
    for span in run.spans.values():
        for resource in span.task.resources:
            spans.setdefault(resource, []).append(span)
    least_s = run.makespan_s * len(spans) / MOST if len(run.spans) > MOST else 0.0
    return [block for resource, held in spans.items() for block in _joined(resource, held, least_s)]


def _joined(resource: Key, spans: list[Span], least_s: float) -> list[Block]:
    """A resource runs one call at a time, so spans sorted by their starts do not overlap."""
    spans = sorted(spans, key=lambda span: span.start_s)
    groups: list[list[Span]] = []
    for span in spans:
        if groups and span.end_s - groups[-1][0].start_s <= least_s:
            groups[-1].append(span)
        else:
            groups.append([span])
    return [_block(resource, group) for group in groups]


def _block(resource: Key, spans: list[Span]) -> Block:
    seconds: dict[str, float] = {}
    for span in spans:
        label = span.task.label or "other"
        seconds[label] = seconds.get(label, 0.0) + span.end_s - span.start_s
    most = max(seconds, key=lambda label: seconds[label])
    return Block(resource, str(spans[0].task.key), most, len(spans), spans[0].start_s, spans[-1].end_s)
