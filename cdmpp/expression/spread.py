"""Spread: how far a measured time may lie from a prediction, by what is known inside of the range and beyond it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdmpp.expression.factor import with_nodes

Floats = npt.NDArray[np.float64]
Ranges = Mapping[str, tuple[float, float]]
LEVEL = 0.8
"""Part of the runs that an interval is to cover."""
SIGMAS = 1.2815515655446004
"""Standard deviations of a normal distribution to each side that cover it."""
_NEAR = (0.5, 3.0)
"""Bounds of ``near``."""
_UNTOLD = 0.2
"""A factor of two adds this where no runs could be held out."""
_LEAST_STEP = 0.25
"""A run that is beyond the range by less, in factors of two, counts as this far."""


@dataclass(frozen=True)
class Misses:
    """How far runs that were held out lie from their predictions."""

    column: str
    """Column whose largest values were held out; empty for runs that were drawn at random."""
    residuals: Floats
    """Logarithms of measured over predicted time, shape ``(held,)``."""
    left: Floats
    """Standard deviations that near runs leave, shape ``(held,)``."""
    beyond: Floats
    """Factors of two that the runs are beyond the range of the others, shape ``(held,)``."""


@dataclass(frozen=True)
class Spread:
    """Standard deviations of the logarithm of measured over predicted time."""

    noise: float
    """Within the measured range."""
    by_doubling: Mapping[str, float]
    """Column -> what each factor of two beyond its range adds."""
    other: float = _UNTOLD
    """The same of a column whose largest values could not be held out."""
    near: float = 1.0
    """Factor of the standard deviation that the runs near a point leave."""

    def sigma(self, left: Floats, disagreement: Floats, beyond: Floats) -> Floats:
        """Return the standard deviation at points.

        Args:
            left: standard deviation that the runs near the points leave, shape ``(points,)``.
            disagreement: standard deviation of the logarithms of the ensemble, shape ``(points,)``.
            beyond: as ``beyond`` returns it. It was measured with all that fits disagree by, so the larger counts.
        """
        return np.sqrt((self.near * left) ** 2 + np.maximum(disagreement, beyond) ** 2)

    def beyond(self, ranges: Ranges, columns: Mapping[str, Floats]) -> Floats:
        """Return what being outside of ranges adds to the standard deviation at points, shape ``(points,)``."""
        steps = steps_beyond(ranges, columns)
        return np.sqrt(sum((self.by_doubling.get(name, self.other) * far) ** 2 for name, far in steps.items()))

    def bounds(self, times_s: Floats, sigma: Floats) -> tuple[Floats, Floats]:
        """Return the lower and the upper bound, which cover ``LEVEL`` of the runs."""
        return times_s * np.exp(-SIGMAS * sigma), times_s * np.exp(SIGMAS * sigma)

    @classmethod
    def calibrated(cls, within: Sequence[Misses], beyond: Sequence[Misses]) -> Spread:
        """Fit the spread to runs that were held out.

        Of a column that could not be held out the widening is the mean of the others.

        Args:
            within: at random.
            beyond: with the largest values of a column, several times for each column where its values allow that.
        """
        residuals = np.concatenate([one.residuals for one in within])
        left = np.concatenate([one.left for one in within])
        noise = max(float(np.quantile(np.abs(residuals), LEVEL)) / SIGMAS, 1e-4)
        near = float(np.clip(np.quantile(np.abs(residuals) / left, LEVEL) / SIGMAS, *_NEAR))
        wanted = dict[str, list[float]]()
        for one in beyond:
            more = (np.abs(one.residuals) / SIGMAS) ** 2 - (near * one.left) ** 2
            needed = np.sqrt(np.maximum(more, 0.0)) / np.maximum(one.beyond, _LEAST_STEP)
            wanted.setdefault(one.column, []).append(float(np.quantile(needed, LEVEL)))
        by_doubling = {column: max(found) for column, found in wanted.items()}
        other = float(np.mean(list(by_doubling.values()))) if by_doubling else _UNTOLD
        return cls(noise, by_doubling, other, near)


def ranges_of(columns: Mapping[str, Floats]) -> dict[str, tuple[float, float]]:
    """Return the range of each column, and of the GPUs of a node where they follow from others."""
    return {name: (float(values.min()), float(values.max())) for name, values in with_nodes(columns).items()}


def steps_beyond(ranges: Ranges, columns: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return how far points lie outside of ranges, in factors of two: column -> shape ``(points,)``."""
    values = with_nodes(columns)
    return {
        name: np.maximum(np.log2(np.maximum(values[name] / high, low / values[name])), 0.0)
        for name, (low, high) in ranges.items()
    }


def outside(ranges: Ranges, columns: Mapping[str, Floats]) -> tuple[tuple[str, ...], ...]:
    """Return for each point the columns in which it lies outside of ranges."""
    steps = steps_beyond(ranges, columns)
    return tuple(
        tuple(name for name, far in zip(steps, row, strict=True) if far > 1e-9)
        for row in np.column_stack(list(steps.values()))
    )
