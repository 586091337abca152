"""Liveness: the most bytes of results that are alive at a time while calls run in an order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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

    @property
    def workspace_bytes(self) -> int:
        """It holds so many more while it runs."""


@dataclass(frozen=True)
class Lifetimes:
    """Which runs read what the calls of one order wrote, for the last time: a result lives until its last reader ran.

    A call that writes no bytes works in place: whoever reads it reads the first result that it reads itself.
    """

    places: NDArray[np.int64]
    """Place of each run among the calls."""
    ends: NDArray[np.int64]
    """The last run that reads all of what each run wrote; the run itself if none does."""
    saved_ends: NDArray[np.int64]
    """The same of runs that read what autograd saved."""
    latest: Mapping[int, int]
    """Place of a call -> the run whose bytes are read from then on."""

    @classmethod
    def of(cls, calls: Sequence[Written], runs: Sequence[tuple[int, bool]]) -> Lifetimes:
        """Follow the calls.

        Args:
            calls: all calls.
            runs: place of each call as they run, and whether it reads only what autograd saved. A call that runs twice
                writes twice, and the second result is read from then on.
        """
        latest = dict[int, int]()
        ends = {False: list(range(len(runs))), True: list(range(len(runs)))}
        for run, (place, reads_saved) in enumerate(runs):
            call, own = calls[place], ends[reads_saved]
            for source in call.inputs:
                if source in latest:
                    own[latest[source]] = run
            first = call.inputs[0] if call.inputs else place
            latest[place] = run if call.output_bytes else latest.get(first, run)
        places = np.array([place for place, _ in runs], np.int64)
        return cls(places, np.array(ends[False], np.int64), np.array(ends[True], np.int64), latest)

    def alive(
        self,
        sizes: NDArray[np.int64],
        saved: NDArray[np.int64],
        workspace: NDArray[np.int64],
        to_end: Collection[int] = (),
        held: Mapping[int, Any] = MappingProxyType({}),
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the bytes alive while each run writes its result, and after it; they have the axes of ``sizes``.

        Args:
            sizes: bytes that each call writes; an axis in front of the calls is over sizes of the same step.
            saved: bytes of them that the backward pass reads, if it reads any.
            workspace: bytes that each call holds in addition while it runs.
            to_end: places of calls whose results live to the end.
            held: place of a call -> so many bytes of what its first run writes live to the end.
        """
        if not len(self.places):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        ends, stays = self.ends.copy(), np.zeros((*sizes.shape[:-1], len(self.places)), np.int64)
        ends[[self.latest[place] for place in to_end if place in self.latest]] = len(ends)
        for place, size in held.items():
            for run in np.flatnonzero(self.places == place)[:1]:
                stays[..., run] = size
        all_of, kept = sizes[..., self.places], saved[..., self.places]
        over = np.minimum(np.maximum(stays - (all_of - kept), 0), kept)
        freed = _freed(ends, np.maximum(all_of - kept - stays, 0))
        freed += _freed(np.maximum(ends, self.saved_ends), kept - over)
        written, gone = np.cumsum(all_of, axis=-1), np.cumsum(freed, axis=-1)
        return written - gone + freed + workspace[..., self.places], written - gone


def _freed(ends: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes that are let go at each run; those of ``sizes`` with the runs ``ends``, or after all runs."""
    found, order = np.zeros((*sizes.shape[:-1], len(ends) + 1), np.int64), np.argsort(ends, kind="stable")
    runs, starts = np.unique(ends[order], return_index=True)
    found[..., runs] = np.add.reduceat(sizes[..., order], starts, axis=-1)
    return found[..., :-1]


def bytes_of(calls: Sequence[Written]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the bytes that each call writes, those of them that the backward pass reads, if any, and its workspace."""
    sizes = np.array([one.output_bytes for one in calls], np.int64)
    saved = [one.output_bytes if one.saved_bytes is None else one.saved_bytes for one in calls]
    return sizes, np.array(saved, np.int64), np.array([one.workspace_bytes for one in calls], np.int64)


def peak_of(calls: Sequence[Written], runs: Sequence[tuple[int, bool]], to_end: Collection[int] = ()) -> int:
    """Return the most bytes alive at a time; arguments as of ``Lifetimes``."""
    during, _ = Lifetimes.of(calls, runs).alive(*bytes_of(calls), to_end)
    return int(during.max(initial=0))


def peak_activation_bytes(graph: NetworkGraph, order: Sequence[int]) -> int:
    """Return the most bytes of results alive where calls run in ``order``; returned ones live to the end."""
    return peak_of(graph.calls, [(place, False) for place in order], graph.results)


def peak_with_inputs(graph: NetworkGraph, weights: Collection[int]) -> int:
    """Return the most bytes of inputs and results alive, in the order of the program.

    An input lives until its last reader has run, as what nobody else holds: a cache that each layer replaces.

    Args:
        graph: calls with the inputs that they read among ``Call.resident``; inputs that none reads live to the end.
        weights: numbers of weights, which are not counted.
    """
    given = {number: size for call in graph.calls for number, size in call.resident if number not in weights}
    places = {number: place for place, number in enumerate(given)}
    calls = [replace(graph.calls[0], inputs=(), output_bytes=size, saved_bytes=None) for size in given.values()]
    for call in graph.calls:
        read = (places[number] for number, _ in call.resident if number in places)
        calls.append(replace(call, inputs=(*(place + len(given) for place in call.inputs), *read)))
    peak = peak_of(calls, [(place, False) for place in range(len(calls))], [len(given) + one for one in graph.results])
    return peak + graph.input_bytes - sum(given.values())
