"""Balance: a whole cut into parts of which the longest is as short as possible, by dynamic programming.

What can be cut may be a sequence, or any set of states of which some lie within others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
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

    Of several such choices the one whose parts are most equal, by the sum of their squares; then the earliest cuts.

    Args:
        until_s: seconds of all that comes before each possible cut; the first is the start, the last is the end.
        cut_s: seconds that both parts take longer where they are cut there, as messages do; as long as ``until_s``.
        parts: number of parts, at least 1 and less than ``until_s`` is long.

    Returns:
        Numbers of the chosen cuts, in rising order; one fewer than parts.
    """
    at, cut = np.asarray(until_s, np.float64), np.asarray(cut_s, np.float64).copy()
    cut[0] = cut[-1] = 0.0
    length = at[None, :] - at[:, None] + cut[None, :] + cut[:, None]
    length[np.tril_indices(len(at))] = np.inf
    longest = length[:, -1]
    for _ in range(parts - 1):
        longest, _ = extended(longest, length, np.maximum)
    square = np.where(length <= longest[0] * (1 + _CLOSE), length, np.inf) ** 2
    best, steps = square[:, -1], list[NDArray[np.int64]]()
    for _ in range(parts - 1):
        best, ends = extended(best, square, np.add)
        steps.append(ends)
    found, place = list[int](), 0
    for ends in reversed(steps):
        place = int(ends[place])
        found.append(place)
    return tuple(found)
