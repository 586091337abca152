"""Axis: from numbers to places in a picture, and the numbers that are written next to it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class LogAxis:
    """The axis is logarithmic, from ``low`` to ``high``, both positive."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], margin: float = 1.6) -> LogAxis:
        """Make one that has all ``values``, and a factor of ``margin`` beyond them at both ends."""
        known = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
        return cls(min(known) / margin, max(known) * margin)

    def share(self, value: float) -> float:
        """Return the place of ``value``, 0 at the low end and 1 at the high one."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """List decades; also their 2 and 5 folds where there are few, each second one where there are many."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        decades = math.log10(self.high / self.low)
        steps, stride = ((1, 2, 5) if decades < 2.5 else (1,)), (2 if decades > 7 else 1)
        found = [step * 10.0**power for power in range(first, last + 1, stride) for step in steps]
        return [value for value in found if self.low <= value <= self.high]


def linear_ticks(end: float, most: int = 5) -> list[float]:
    """List round numbers from 0 to ``end``, at most ``most`` steps."""
    if end <= 0:
        return [0.0]
    rough = end / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1, 2, 5, 10) if factor * unit >= rough * (1 - 1e-9))
    return [i * step for i in range(int(end / step * (1 + 1e-9)) + 1)]
