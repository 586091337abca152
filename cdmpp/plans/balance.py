"""Balance: a whole cut into parts of which the longest is as short as possible, by dynamic programming.

What can be cut may be a sequence, or any set of states of which some lie within others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

_CLOSE = 1e-9
Floats = NDArray[np.float64]
Combine = Callable[[Floats, Floats], Floats]
"""``np.maximum`` where the longest part counts, ``np.add`` where all do."""


def extended(rest: Floats, length: Floats, combine: Combine) -> tuple[Floats, NDArray[np.int64]]:
    """Put one part in front of the best ways to cut what lies behind it.

    Args:
        rest: state -> value of the best way to cut all behind it.
        length: of the part from a state (row) to a later one (column); infinite where there is none.
        combine: the value of a part and of the rest.

    Returns:
        State -> value of the best way from there on, and the state at which its first part ends.
    """
    total = combine(length, rest[None, :])
    ends = total.argmin(axis=1)
    return total[np.arange(len(rest)), ends], ends


def balanced(until_s: Sequence[float], cut_s: Sequence[float], parts: int) -> tuple[int, ...]:
    """Choose the cuts of a sequence under which the longest part is shortest.

    Of several such choices the one whose parts are most equal, by the sum of their squares; of these, rounding aside,
    the one with the earliest first cut, then second, and so on: early stages of a pipeline hold most micro-batches.

    Args:
        until_s: seconds of all that comes before each possible cut; the first is the start, the last is the end.
        cut_s: seconds that both parts take longer where they are cut there, as messages do; as long as ``until_s``.
        parts: number of parts, at least 1 and less than ``until_s`` is long.

    Returns:
        Numbers of the chosen cuts, in rising order; one fewer than parts.
    """
    return _balanced(tuple(until_s), tuple(cut_s), parts)


@lru_cache(maxsize=4096)
def _balanced(until_s: tuple[float, ...], cut_s: tuple[float, ...], parts: int) -> tuple[int, ...]:
    """Choose the cuts; a search asks for the same ones at every number of replicas and schedule."""
    at, cut = np.array(until_s, np.float64), np.array(cut_s, np.float64)
    cut[0] = cut[-1] = 0.0
    lengths = _Lengths.up_to(_even_s(at, cut, parts), at, cut)
    longest = lengths.to_end
    for _ in range(parts - 1):
        longest = np.maximum(lengths.each, lengths.behind(longest)).min(axis=1)
    lengths = _Lengths.up_to(float(longest[0]), at, cut)
    square = lengths.each**2
    best, steps = lengths.to_end**2, list[NDArray[np.int64]]()
    for _ in range(parts - 1):
        total = square + lengths.behind(best)
        best = total.min(axis=1)
        steps.append((total <= best[:, None] * (1 + _CLOSE)).argmax(axis=1))
    found, place = list[int](), 0
    for ends in reversed(steps):
        place += int(ends[place]) + 1
        found.append(place)
    return tuple(found)


@dataclass(frozen=True)
class _Lengths:
    """Seconds of the parts of a sequence that are no longer than a bound: few where parts are many."""

    each: Floats
    """(places, most): a row a begin, the first column ends one place behind it; infinite where a part is too long."""
    to_end: Floats
    """(places,): of the parts that go to the end."""

    def behind(self, values: Floats) -> Floats:
        """Return the values of the places at which the parts of ``each`` end, until the next call."""
        buffer, windows = self._windows
        buffer[: len(values) - 1] = values[1:]
        return windows

    @cached_property
    def _windows(self) -> tuple[Floats, Floats]:
        """Values from the second place on, infinite behind the end; and of each place those behind it."""
        places, most = self.each.shape
        buffer = np.full(places - 1 + most, np.inf)
        return buffer, sliding_window_view(buffer, most)

    @classmethod
    def up_to(cls, bound_s: float, at: Floats, cut: Floats) -> _Lengths:
        """List the parts of at most ``bound_s``, and those that are longer by rounding alone."""
        length = at[None, :] - at[:, None] + cut[None, :] + cut[:, None]
        length[np.tril_indices(len(at))] = np.inf
        length[length > bound_s * (1 + _CLOSE)] = np.inf
        begins, ends = np.nonzero(np.isfinite(length))
        each = np.full((len(at), int((ends - begins).max(initial=1))), np.inf)
        each[begins, ends - begins - 1] = length[begins, ends]
        return cls(each, length[:, -1])


def _even_s(at: Floats, cut: Floats, parts: int) -> float:
    """Seconds of the longest part where cuts are as even as can be: the best choice has none that is longer."""
    last, numbers = len(at) - 1, np.arange(1, parts)
    chosen = np.searchsorted(at, at[0] + (at[-1] - at[0]) * numbers / parts)
    chosen = np.maximum.accumulate(np.maximum(chosen, numbers) - numbers) + numbers
    ends = np.concatenate([[0], np.minimum(chosen, last - parts + numbers), [last]])
    found: float = (at[ends[1:]] - at[ends[:-1]] + cut[ends[1:]] + cut[ends[:-1]]).max()
    return found
