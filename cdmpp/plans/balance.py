"""Balance: a sequence cut into parts of which the longest is as short as possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_CLOSE = 1e-9


def balanced(until_s: Sequence[float], cut_s: Sequence[float], parts: int) -> tuple[int, ...]:
    """Choose the cuts under which the longest part is shortest, by dynamic programming.

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
    longest = length[0]
    for _ in range(parts - 1):
        longest = np.maximum(longest[:, None], length).min(axis=0)
    square = np.where(length <= longest[-1] * (1 + _CLOSE), length, np.inf) ** 2
    best, steps = square[0], list[NDArray[np.int64]]()
    for _ in range(parts - 1):
        total = best[:, None] + square
        steps.append(total.argmin(axis=0))
        best = total.min(axis=0)
    found, end = list[int](), len(at) - 1
    for before in reversed(steps):
        end = int(before[end])
        found.append(end)
    return tuple(reversed(found))
