"""Anchor: how far the runs nearest to a point correct the expression, and how much of its growth beyond them counts.

A point outside of the measured range is drawn back to the range. There the expression is corrected by the residuals of
near runs, and from there on it grows as the expression says, or less. With the whole correction and no growth this is
the time of the nearest run: a fit with an anchor can always fall back on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]
WEIGHTS, WIDTHS, GROWTHS = (0.0, 0.5, 1.0), (0.25, 1.0), (1.0, 0.75, 0.5, 0.25, 0.0)


@dataclass(frozen=True)
class Anchor:
    """An anchor has the runs of a fit and says how a prediction leans on them."""

    weight: float = 0.0
    """Part of the residual of near runs that is carried to a point."""
    width: float = 1.0
    """How far away runs are near: a factor of 2 in one column is 1."""
    growth: float = 1.0
    """Part of the growth of the expression, as a logarithm, that counts beyond the measured range."""

    def correct(
        self,
        times_s: Callable[[Mapping[str, Floats], Codes], Floats],
        runs: tuple[Mapping[str, Floats], Codes, Floats],
        scaling: frozenset[str],
        points: tuple[Mapping[str, Floats], Codes],
    ) -> Floats:
        """Return the corrected seconds of points, shape ``(points,)``.

        Args:
            times_s: the expression.
            runs: columns, codes of groups and logarithms of measured over fitted time, of the runs of the fit.
            scaling: columns along which points are drawn back to the runs.
            points: columns and codes of groups.
        """
        columns, codes = points
        found = times_s(columns, codes)
        if not self.weight and self.growth == 1:
            return found
        inside = drawn_back(runs[0], runs[1], scaling, columns, codes)
        there = times_s(inside, codes)
        residual = self.weight * _near(runs, inside, codes, self.width)
        with np.errstate(divide="ignore", invalid="ignore"):
            grown = np.where((found > 0) & (there > 0), np.log(found / there), 0.0)
        return there * np.exp(residual + self.growth * grown)


def choices() -> list[Anchor]:
    """Return the anchors that held-out rows choose from; the first one leaves the expression as it is."""
    free = [Anchor(growth=growth) for growth in GROWTHS]
    return free + [Anchor(*one) for one in itertools.product(WEIGHTS[1:], WIDTHS, GROWTHS)]


def drawn_back(
    runs: Mapping[str, Floats], codes: Codes, scaling: frozenset[str], columns: Mapping[str, Floats], at: Codes
) -> dict[str, Floats]:
    """Return points with their scaling columns inside of the range of the runs of their group."""
    found = dict(columns)
    for name in scaling & set(columns):
        values = np.array(columns[name], dtype=np.float64)
        for group in np.unique(at):
            own = runs[name][codes == group]
            if len(own):
                values[at == group] = np.clip(values[at == group], own.min(), own.max())
        found[name] = values
    return found


def _near(
    runs: tuple[Mapping[str, Floats], Codes, Floats], columns: Mapping[str, Floats], at: Codes, width: float
) -> Floats:
    """Mean residual of the runs around each point, drawn to 0 where none is near."""
    names = list(columns)
    known = np.log2(np.column_stack([runs[0][name] for name in names]))
    asked = np.log2(np.column_stack([columns[name] for name in names]))
    found = np.zeros(len(at))
    for group in np.unique(at):
        rows, places = runs[1] == group, at == group
        if not rows.any():
            continue
        distance = ((asked[places][:, None, :] - known[rows][None]) ** 2).sum(axis=2)
        kernel = np.exp(-0.5 * distance / width**2)
        found[places] = kernel @ runs[2][rows] / (kernel.sum(axis=1) + 0.1)
    return found
