"""Liveness: the most bytes of results that are alive at a time while calls run in an order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from cdmpp.network.graph import NetworkGraph


class Written(Protocol):
    """It is a call of a network, or an op of a step."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """These are the places of those whose results it reads."""

    @property
    def held(self) -> tuple[int, ...]:
        """It does not read the results of these, but they live until it ran."""

    @property
    def output_bytes(self) -> int:
        """It writes so many bytes."""

    @property
    def saved_bytes(self) -> int | None:
        """The backward pass reads so many of them; None: all, if it reads any."""

    @property
    def own_saved_bytes(self) -> int | None:
        """So many of them, such as a mask, are read by its own backward pass; None: all."""

    @property
    def result_bytes(self) -> int | None:
        """So many of what it writes are its result; None: all."""

    @property
    def gradient_bytes(self) -> int | None:
        """So many of them are gradients of parameters; None: all, if any."""

    @property
    def workspace_bytes(self) -> int:
        """It holds so many more while it runs."""

    @property
    def forward(self) -> int | None:
        """It is of the backward pass of the call at this place, or runs it again; None: unknown."""


@dataclass(frozen=True)
class CallBytes:
    """The last axis of each array has a number a call; an axis before it is over sizes of the same step."""

    written: NDArray[np.int64]
    saved: NDArray[np.int64]
    """Bytes of ``written`` that the backward pass reads, if it reads any."""
    own: NDArray[np.int64]
    """Bytes of ``saved`` that the call's own backward pass reads; only others read the rest."""
    lasting: NDArray[np.int64]
    """Bytes of ``written`` that live to the end where the call makes a gradient of a parameter, or a result."""
    workspace: NDArray[np.int64]
    """Bytes that a call holds in addition while it runs."""
    results: NDArray[np.int64]
    """Bytes of ``written`` that other calls read; what is saved besides them, only the backward pass does."""

    @classmethod
    def of(cls, calls: Sequence[Written]) -> CallBytes:
        """Read them from the calls."""
        written, saved, own, lasting = list[int](), list[int](), list[int](), list[int]()
        for one in calls:
            written.append(one.output_bytes)
            saved.append(one.output_bytes if one.saved_bytes is None else one.saved_bytes)
            own.append(saved[-1] if one.own_saved_bytes is None else one.own_saved_bytes)
            known = (one.gradient_bytes, one.result_bytes, one.output_bytes)
            lasting.append(next(size for size in known if size is not None))
        workspace = [one.workspace_bytes for one in calls]
        results = [one.output_bytes if one.result_bytes is None else one.result_bytes for one in calls]
        return cls(*(np.array(one, np.int64) for one in (written, saved, own, lasting, workspace, results)))

    def at(self, places: NDArray[np.int64] | Sequence[int]) -> Self:
        """Return those of some calls, in this order."""
        own = np.asarray(places, np.int64)
        return type(self)(**{one.name: getattr(self, one.name)[..., own] for one in fields(self)})


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
    """The same of runs that read what autograd saved, but for those of the call's own backward pass."""
    own_ends: NDArray[np.int64]
    """The same of those of its own backward pass."""
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
        latest, ends, saved_ends, own_ends = dict[int, int](), *(list(range(len(runs))) for _ in range(3))
        for run, (place, reads_saved) in enumerate(runs):
            call, inputs = calls[place], calls[place].inputs
            for source in (*inputs, *call.held) if call.held else inputs:
                if (writer := latest.get(source)) is None:
                    continue
                if not reads_saved:
                    ends[writer] = run
                elif (forward := call.forward) is not None and forward in (source, calls[source].forward):
                    own_ends[writer] = run
                else:
                    saved_ends[writer] = run
            latest[place] = run if call.output_bytes else latest.get(inputs[0] if inputs else place, run)
        places, last, saved, own = (
            np.array(one, np.int64) for one in ([place for place, _ in runs], ends, saved_ends, own_ends)
        )
        return cls(places, last, saved, own, latest)

    @cached_property
    def _part_ends(self) -> tuple[_Ends, ...]:
        """Ends of the parts of what a run wrote, as ``alive`` tells them apart."""
        last_read = np.maximum(self.ends, self.saved_ends)
        beyond = np.maximum(last_read, self.own_ends), self.saved_ends, np.maximum(self.saved_ends, self.own_ends)
        return tuple(map(_Ends.of, (self.ends, last_read, *beyond)))

    def alive(
        self, sizes: CallBytes, to_end: Collection[int] = (), held: Mapping[int, Any] = MappingProxyType({})
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the bytes alive while each run writes its result, and after it; they have the axes of ``sizes``.

        Args:
            sizes: what the calls write, and how much of it is kept.
            to_end: places of calls whose results or gradients live to the end.
            held: place of a call -> so many bytes of what its first run writes live to the end.
        """
        if not len(self.places):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        written, stays = sizes.written[..., self.places], np.zeros(sizes.written[..., self.places].shape, np.int64)
        lasting = np.array([self.latest[place] for place in to_end if place in self.latest], np.int64)
        stays[..., lasting] = sizes.lasting[..., self.places[lasting]]
        for place, size in held.items():
            for run in np.flatnonzero(self.places == place)[:1]:
                stays[..., run] = size
        saved, own = sizes.saved[..., self.places], sizes.own[..., self.places]
        freed = np.zeros(written.shape, np.int64)
        apart = np.clip(written - sizes.results[..., self.places], 0, saved)  # nothing but the backward pass reads it
        of_own = np.minimum(apart, own)
        parts = written - saved, saved - own - (apart - of_own), own - of_own, apart - of_own, of_own
        for ends, size in zip(self._part_ends, parts, strict=True):
            gone = np.maximum(size - stays, 0)  # what stays is the first part as far as it goes, then the next
            stays = stays - (size - gone)
            freed += ends.freed(gone)
        begun, over = np.cumsum(written, axis=-1), np.cumsum(freed, axis=-1)
        return begun - over + freed + sizes.workspace[..., self.places], begun - over


@dataclass(frozen=True)
class _Ends:
    """The run after which a part of what each run wrote is let go."""

    order: NDArray[np.int64]
    """Runs that wrote, by their ends."""
    starts: NDArray[np.int64]
    """Places in ``order`` at which the next end begins."""
    runs: NDArray[np.int64]
    """These ends; the number of runs: after all of them."""

    @classmethod
    def of(cls, ends: NDArray[np.int64]) -> _Ends:
        order = np.argsort(ends, kind="stable")
        runs, starts = np.unique(ends[order], return_index=True)
        return cls(order, starts, runs)

    def freed(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes that are let go at each run, of ``sizes`` that each run wrote."""
        found = np.zeros((*sizes.shape[:-1], len(self.order) + 1), np.int64)
        found[..., self.runs] = np.add.reduceat(sizes[..., self.order], self.starts, axis=-1)
        return found[..., :-1]


def peak_of(calls: Sequence[Written], runs: Sequence[tuple[int, bool]], to_end: Collection[int] = ()) -> int:
    """Return the most bytes alive at a time; arguments as of ``Lifetimes``."""
    during, _ = Lifetimes.of(calls, runs).alive(CallBytes.of(calls), to_end)
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
