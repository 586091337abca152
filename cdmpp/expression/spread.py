"""Spread: how far a measured time may lie from a prediction, by what is known inside of the range and beyond it."""

from __future__ import annotations

from collections import Counter
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
_NEAR = (0.5, 12.0)
"""Bounds of ``near``."""
_BEYOND = (1.0, 8.0)
"""Bounds of ``beyond``."""
_UNTOLD = 1.2
"""``beyond`` where no runs could be held out: the middle of what it is in public tables."""
_FULL_STEP = 0.5
"""A point that is beyond the range by this, in factors of two, has the full width."""


@dataclass(frozen=True)
class Misses:
    """How far runs that were held out lie from their predictions."""

    column: str
    """Column whose largest values were held out; empty for runs that were drawn at random."""
    residuals: Floats
    """Logarithms of measured over predicted time, shape ``(held,)``."""
    left: Floats
    """Standard deviations that near runs leave, shape ``(held,)``."""
    disagreement: Floats
    """Standard deviations of the logarithms of fits to resampled runs, shape ``(held,)``."""


@dataclass(frozen=True)
class Spread:
    """Standard deviations of the logarithm of measured over predicted time.

    What a fit itself is unsure of is the yardstick: what near runs leave, and by how much fits to resampled runs
    disagree. Runs that were held out say how many times as far they lie.
    """

    noise: float
    """Standard deviation within the measured range."""
    near: float
    """Factor of the standard deviation that the runs near a point leave."""
    beyond: float
    """Factor of the whole beyond the range: the form of an expression is never quite right."""

    def sigma(self, left: Floats, disagreement: Floats, steps: Floats) -> Floats:
        """Return the standard deviation at points.

        Args:
            left: standard deviation that the runs near the points leave, shape ``(points,)``.
            disagreement: standard deviation of the logarithms of the ensemble, shape ``(points,)``.
            steps: as ``steps_beyond`` returns them.
        """
        return np.sqrt((self.near * left) ** 2 + disagreement**2) * self.widening(steps)

    def widening(self, steps: Floats) -> Floats:
        """Return the factor of points that are beyond the range: 1 within it.

        Args:
            steps: as ``steps_beyond`` returns them.
        """
        return np.asarray(self.beyond ** np.minimum(steps / _FULL_STEP, 1.0))

    def bounds(self, times_s: Floats, sigma: Floats) -> tuple[Floats, Floats]:
        """Return the lower and the upper bound, which cover ``LEVEL`` of the runs."""
        return times_s * np.exp(-SIGMAS * sigma), times_s * np.exp(SIGMAS * sigma)

    @classmethod
    def calibrated(cls, within: Sequence[Misses], beyond: Sequence[Misses]) -> Spread:
        """Fit the spread to runs that were held out.

        Args:
            within: at random.
            beyond: with the largest values of a column, several times for each column where its values allow that.
                Each column weighs the same, and each time of a column.
        """
        residuals = np.concatenate([one.residuals for one in within])
        left = np.concatenate([one.left for one in within])
        noise = max(float(np.quantile(np.abs(residuals), LEVEL)) / SIGMAS, 1e-4)
        near = float(np.clip(np.quantile(np.abs(residuals) / left, LEVEL) / SIGMAS, *_NEAR))
        if not beyond:
            return cls(noise, near, _UNTOLD)
        times = Counter(one.column for one in beyond)
        missed = [np.abs(one.residuals) / np.hypot(near * one.left, one.disagreement) for one in beyond]
        weights = [np.full(len(one.residuals), 1 / (len(one.residuals) * times[one.column])) for one in beyond]
        needed = (
            np.quantile(np.concatenate(missed), LEVEL, weights=np.concatenate(weights), method="inverted_cdf") / SIGMAS
        )
        return cls(noise, near, float(np.clip(needed, *_BEYOND)))


def ranges_of(columns: Mapping[str, Floats]) -> dict[str, tuple[float, float]]:
    """Return the range of each column, and of the GPUs of a node where they follow from others."""
    return {name: (float(values.min()), float(values.max())) for name, values in with_nodes(columns).items()}


def steps_beyond(ranges: Ranges, columns: Mapping[str, Floats]) -> Floats:
    """Return how far points lie outside of ranges, in factors of two, over all columns, shape ``(points,)``."""
    return np.sqrt(sum(far**2 for far in _steps(ranges, columns).values()))


def outside(ranges: Ranges, columns: Mapping[str, Floats]) -> tuple[tuple[str, ...], ...]:
    """Return for each point the columns in which it lies outside of ranges."""
    steps = _steps(ranges, columns)
    return tuple(
        tuple(name for name, far in zip(steps, row, strict=True) if far > 1e-9)
        for row in np.column_stack(list(steps.values()))
    )


def _steps(ranges: Ranges, columns: Mapping[str, Floats]) -> dict[str, Floats]:
    """How far points lie outside of ranges, in factors of two: column -> shape ``(points,)``."""
    values = with_nodes(columns)
    return {
        name: np.maximum(np.log2(np.maximum(values[name] / high, low / values[name])), 0.0)
        for name, (low, high) in ranges.items()
    }
