"""Cadence: steps of a device whose work repeats from the first to the last kernel, where nothing marks them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from statistics import median

from cdmpp.trace.event import Event, is_copy
from cdmpp.trace.exchange_events import is_collective
from cdmpp.trace.scanned import Scanned

_LEAST = 3
"""Repeats that make a cadence."""


def kernel_repeats(scanned: Scanned) -> list[tuple[float, float]]:
    """Return begin and end of each repeat on the stream with the most kernels, in microseconds of the host.

    All of its kernels must repeat: layers that repeat within one step have something else before or after them.
    """
    streams: dict[object, list[Event]] = defaultdict(list)
    for event in scanned.device:
        if not is_copy(event.category, event.name) and not is_collective(event):
            streams[event.device, event.pid, event.stream if event.stream is not None else event.tid].append(event)
    works = max(streams.values(), key=len, default=[])
    works.sort(key=lambda one: one.ts)
    launches: dict[object, float] = {one.correlation: one.ts for one in scanned.launches if one.correlation is not None}
    launched = [launches.get(one.correlation) for one in works]
    if all(one is None for one in launched):
        moments = [one.ts for one in works]
    else:
        moments = [one for one in launched if one is not None]
    return _repeats([one.name for one in works], moments) if len(moments) == len(works) else []


def graph_repeats(scanned: Scanned, launches: Sequence[Event]) -> list[tuple[float, float]]:
    """Return begin and end of each repeat of unlike graphs, such as the pieces that a server replays for one step."""
    names: dict[object, Counter] = defaultdict(Counter)
    for event in scanned.device:
        names[event.correlation][event.name] += 1
    return _repeats([frozenset(names[one.correlation].items()) for one in launches], [one.ts for one in launches])


def _repeats(sequence: Sequence[Hashable], moments: Sequence[float]) -> list[tuple[float, float]]:
    """Spans of the whole repeats of a sequence; a part of one may come before the first and after the last."""
    count, length = len(sequence), _period(sequence)
    if count < _LEAST * length or len(set(sequence[:length])) < 2:
        return []
    first = _longest_pause(moments, length) if count % length else 0
    places = [*range(first, count - length + 1, length)]
    if len(places) < _LEAST:
        places = [*range(0, count - length + 1, length)]
    begins = [moments[place] for place in places]
    usual = median(after - before for before, after in zip(begins, begins[1:], strict=False))
    end = places[-1] + length
    last = moments[end] if end < count else max(begins[-1] + usual, moments[-1] + 1.0)
    spans = [*zip(begins, [*begins[1:], last], strict=True)]
    return spans if all(begin < after for begin, after in spans) else []


def _period(sequence: Sequence[Hashable]) -> int:
    """Return the least number of places after which all repeats; the length of the sequence where nothing does.

    Knuth, Morris, Pratt, *Fast Pattern Matching in Strings*, 1977: what is left of the longest border.
    """
    borders, border = [0] * len(sequence), 0
    for place in range(1, len(sequence)):
        while border and sequence[place] != sequence[border]:
            border = borders[border - 1]
        border += sequence[place] == sequence[border]
        borders[place] = border
    return len(sequence) - border


def _longest_pause(moments: Sequence[float], length: int) -> int:
    """The place in a repeat before which the host pauses longest."""
    pauses: list[list[float]] = [[] for _ in range(length)]
    for place in range(1, len(moments)):
        pauses[place % length].append(moments[place] - moments[place - 1])
    return max(range(length), key=lambda place: median(pauses[place]))
