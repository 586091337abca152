"""Liveness: the most bytes of results that are alive at a time while calls run in an order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from cdmpp.network.graph import NetworkGraph


class Written(Protocol):
    """It is a call of a network, or an op of a step."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """These are the places of those whose results it reads."""

    @property
    def output_bytes(self) -> int:
        """It writes so many bytes."""

    @property
    def saved_bytes(self) -> int | None:
        """The backward pass reads so many of them; None: all, if it reads any."""


def alive_of(
    calls: Sequence[Written],
    runs: Sequence[tuple[int, bool]],
    to_end: Collection[int] = (),
    held: Mapping[int, int] = MappingProxyType({}),
) -> list[tuple[int, int]]:
    """Return the bytes alive while each run writes its result, and after it: a result lives until its last reader ran.

    A call that writes no bytes works in place: whoever reads it reads the first result that it reads itself.

    Args:
        calls: all calls.
        runs: place of each call as they run, and whether it reads only what autograd saved. A call that runs twice
            writes twice, and the second result is read from then on.
        to_end: places of calls whose results live to the end.
        held: place of a call -> so many bytes of what its first run writes live to the end.
    """
    latest = dict[int, int]()
    """Place -> the run whose bytes are read."""
    ends = {False: list(range(len(runs))), True: list(range(len(runs)))}
    for run, (place, reads_saved) in enumerate(runs):
        for source in calls[place].inputs:
            if source in latest:
                ends[reads_saved][latest[source]] = run
        first = calls[place].inputs[0] if calls[place].inputs else place
        latest[place] = run if calls[place].output_bytes else latest.get(first, run)
    for place in to_end:
        if place in latest:
            ends[False][latest[place]] = len(runs)
    freed, left = Counter[int](), dict(held)
    for run, (place, _) in enumerate(runs):
        size, saved = calls[place].output_bytes, calls[place].saved_bytes
        saved = size if saved is None else saved
        stays = left.pop(place, 0)
        freed[ends[False][run]] += max(size - saved - stays, 0)
        freed[max(ends[False][run], ends[True][run])] += saved - min(max(stays - (size - saved), 0), saved)
    alive, found = 0, list[tuple[int, int]]()
    for run, (place, _) in enumerate(runs):
        alive += calls[place].output_bytes
        found.append((alive, alive - freed[run]))
        alive -= freed[run]
    return found


def peak_of(calls: Sequence[Written], runs: Sequence[tuple[int, bool]], to_end: Collection[int] = ()) -> int:
    """Return the most bytes alive at a time, of what ``alive_of`` returns."""
    return max((during for during, _ in alive_of(calls, runs, to_end)), default=0)


def peak_activation_bytes(graph: NetworkGraph, order: Sequence[int]) -> int:
    """Return the most bytes of results alive where calls run in ``order``; returned ones live to the end."""
    return peak_of(graph.calls, [(place, False) for place in order], graph.results)
