"""Intervals of time: what lies under any of them, and what of some is left beside others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
"""Begin and end in seconds."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Cover the same time by intervals that rise and do not touch; empty ones are left out."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif end > begin:
            found.append((begin, end))
    return found


def without(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Return the part of ``intervals`` that lies under none of ``others``; both as ``union`` gives them."""
    found, at = list[Interval](), 0
    for begin, end in intervals:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        place = at
        while place < len(others) and others[place][0] < end:
            if others[place][0] > begin:
                found.append((begin, others[place][0]))
            begin = max(begin, others[place][1])
            place += 1
        if begin < end:
            found.append((begin, end))
    return found


def length_s(intervals: Iterable[Interval]) -> float:
    """Sum the seconds of intervals that do not overlap."""
    return sum(end - begin for begin, end in intervals)
