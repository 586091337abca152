"""Spread: how far a measured time may lie from a prediction, by what is known inside of the range and beyond it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LEVEL = 0.8
"""Part of the runs that an interval is to cover."""
SIGMAS = 1.2815515655446004
"""Standard deviations of a normal distribution to each side that cover it."""

_NEAR = (0.5, 3.0)
"""Bounds of ``near``."""


@dataclass(frozen=True)
class Spread:
    """Standard deviations of the logarithm of measured over predicted time."""

    noise: float
    """Within the measured range."""
    by_doubling: float
    """Added for each factor of two beyond the range, over all factors."""
    scale: float = 1.0
    """Factor of what the ensemble disagrees by."""
    near: float = 1.0
    """Factor of the standard deviation that the runs near a point leave."""

    def sigma(self, left: Floats, disagreement: Floats, beyond: Floats) -> Floats:
        """Return the standard deviation at points.

        Args:
            left: standard deviation that the runs near the points leave, shape ``(points,)``.
            disagreement: standard deviation of the logarithms of the ensemble, shape ``(points,)``.
            beyond: how far the points are outside of the range, in factors of two, shape ``(points,)``.
        """
        return np.sqrt((self.near * left) ** 2 + (self.scale * disagreement) ** 2 + (self.by_doubling * beyond) ** 2)

    def bounds(self, times_s: Floats, sigma: Floats) -> tuple[Floats, Floats]:
        """Return the lower and the upper bound, which cover ``LEVEL`` of the runs."""
        return times_s * np.exp(-SIGMAS * sigma), times_s * np.exp(SIGMAS * sigma)

    @classmethod
    def calibrated(
        cls, inside: Sequence[tuple[Floats, Floats]], beyond: Sequence[tuple[Floats, Floats, Floats]]
    ) -> Spread:
        """Fit the spread to rows that were held out.

        Args:
            inside: of each random fold: logarithmic residuals of its rows, and the standard deviations that near runs
                leave; each of shape ``(held,)``.
            beyond: of each fold that extrapolates: the same two, and how far its rows are beyond the range.
        """
        residuals, left = (np.concatenate(one) for one in zip(*inside, strict=True))
        noise = max(float(np.quantile(np.abs(residuals), LEVEL)) / SIGMAS, 1e-4)
        near = float(np.clip(np.quantile(np.abs(residuals) / left, LEVEL) / SIGMAS, *_NEAR))
        if not beyond:
            return cls(noise, 0.2, near=near)
        wanted = []
        for found, deviation, steps in beyond:
            more = (np.abs(found) / SIGMAS) ** 2 - (near * deviation) ** 2
            needed = np.sqrt(np.maximum(more, 0.0)) / np.maximum(steps, 0.25)
            wanted.append(float(np.quantile(needed, LEVEL)))
        return cls(noise, float(np.mean(wanted)), near=near)


def beyond_range(
    ranges: Mapping[str, tuple[float, float]], columns: Mapping[str, Floats]
) -> tuple[Floats, list[tuple[str, ...]]]:
    """Return how far points lie outside of ranges, in factors of two, and in which columns."""
    steps = {}
    for name, (low, high) in ranges.items():
        values = np.asarray(columns[name], dtype=np.float64)
        steps[name] = np.maximum(np.log2(np.maximum(values / high, low / values)), 0.0)
    outside = np.column_stack(list(steps.values()))
    names = [tuple(name for name, far in zip(steps, row, strict=True) if far > 1e-9) for row in outside]
    return np.sqrt((outside**2).sum(axis=1)), names
