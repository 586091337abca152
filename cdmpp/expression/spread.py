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


@dataclass(frozen=True)
class Spread:
    """Standard deviations of the logarithm of measured over predicted time."""

    noise: float
    """Within the measured range."""
    by_doubling: float
    """Added for each factor of two beyond the range, over all factors."""
    scale: float = 1.0
    """Factor of what the ensemble disagrees by."""

    def sigma(self, disagreement: Floats, beyond: Floats) -> Floats:
        """Return the standard deviation at points.

        Args:
            disagreement: standard deviation of the logarithms of the ensemble, shape ``(points,)``.
            beyond: how far the points are outside of the range, in factors of two, shape ``(points,)``.
        """
        return np.sqrt(self.noise**2 + (self.scale * disagreement) ** 2 + (self.by_doubling * beyond) ** 2)

    def bounds(self, times_s: Floats, sigma: Floats) -> tuple[Floats, Floats]:
        """Return the lower and the upper bound, which cover ``LEVEL`` of the runs."""
        return times_s * np.exp(-SIGMAS * sigma), times_s * np.exp(SIGMAS * sigma)

    @classmethod
    def calibrated(cls, inside: Floats, folds: Sequence[tuple[Floats, Floats, Floats]]) -> Spread:
        """Fit the spread to residuals.

        Args:
            inside: logarithmic residuals on rows within the range, which were not fitted.
            folds: of each fold that extrapolates: residuals of its held-out rows, disagreement, and how far beyond
                they are; each of shape ``(held,)``.
        """
        noise = max(float(np.quantile(np.abs(inside), LEVEL)) / SIGMAS, 1e-4)
        if not folds:
            return cls(noise, 0.2)
        wanted = []
        for residuals, disagreement, beyond in folds:
            left = (np.abs(residuals) / SIGMAS) ** 2 - noise**2 - disagreement**2
            needed = np.sqrt(np.maximum(left, 0.0)) / np.maximum(beyond, 0.25)
            wanted.append(float(np.quantile(needed, LEVEL)))
        return cls(noise, float(np.mean(wanted)))


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
