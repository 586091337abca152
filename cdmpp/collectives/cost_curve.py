"""CostCurve: lines that stand for a cost that is asked for at many sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

CLOSE = 1e-3
"""Share by which a line may be off halfway between two knots."""
_LAST = 49
_ENDS = np.array([1, *(2**octave for octave in range(4, _LAST + 1))])
"""Sizes in bytes between which there is a piece."""


@dataclass
class CostCurve:
    """Seconds by size: lines through knots that are ``CLOSE`` to the cost, found piece by piece as they are asked for.

    Costs are lines between few sizes, where another algorithm or the next measured size begins: the halfway point of
    two knots tells whether there is such a size between them.
    """

    seconds: Callable[[int], float]
    """Seconds for a whole number of bytes, from 1 up."""
    _found: dict[int, float] = field(default_factory=dict)
    """Knot -> its seconds."""
    _is_known: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(len(_ENDS), np.bool_))
    """Which pieces are known."""
    _knots: tuple[NDArray[np.float64], NDArray[np.float64]] = (np.ones(1), np.zeros(1))

    def at(self, sizes: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the seconds for sizes in bytes, of any shape; 0 takes no time."""
        asked = np.asarray(sizes, np.float64)
        pieces = np.clip(np.searchsorted(_ENDS, asked, side="right") - 1, 0, len(_ENDS) - 2)
        if (is_new := ~self._is_known[pieces] & (asked > 0)).any():
            for number in {*pieces[is_new].tolist()}:
                self._is_known[number] = True
                self._refine(int(_ENDS[number]), int(_ENDS[number + 1]))
            known = sorted(self._found)
            self._knots = np.array(known, np.float64), np.array([self._found[one] for one in known])
        knots, seconds = self._knots
        found = np.interp(asked, knots, seconds)
        if (asked > _ENDS[-1]).any():
            slope = (seconds[-1] - seconds[-2]) / (knots[-1] - knots[-2])
            found = found + np.maximum(asked - knots[-1], 0.0) * slope
        return np.where(asked > 0, found, 0.0)

    @property
    def least_s(self) -> float:
        """Return the seconds for one byte."""
        return self._knot(1)

    def _knot(self, size: int) -> float:
        if size not in self._found:
            self._found[size] = self.seconds(size)
        return self._found[size]

    def _refine(self, low: int, high: int) -> None:
        middle, (first, last) = (low + high) // 2, map(self._knot, (low, high))
        if middle == low:
            return
        truth = self.seconds(middle)
        line = first + (last - first) * (middle - low) / (high - low)
        if abs(line - truth) > CLOSE * truth:
            self._found[middle] = truth
            self._refine(low, middle)
            self._refine(middle, high)
