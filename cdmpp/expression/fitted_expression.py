"""FittedExpression: an expression with everything that a prediction by it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdmpp.expression.columns import role_of
from cdmpp.expression.expression import TINY_S, Expression
from cdmpp.expression.group_label import values_of
from cdmpp.expression.kriging import Kriging
from cdmpp.expression.points import Points, read_points
from cdmpp.expression.run_table import RunTable
from cdmpp.expression.spread import Spread, outside, ranges_of, steps_beyond

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]


@dataclass(frozen=True)
class RunPrediction:
    """The predicted times of points."""

    times_s: Floats
    """Shape ``(points,)``."""
    low_s: Floats
    """Lower bound of the 80 % interval."""
    high_s: Floats
    """Upper bound."""
    outside: tuple[tuple[str, ...], ...]
    """For each point the columns in which it lies beyond the measured range."""


@dataclass(frozen=True)
class ExponentInterval:
    """An exponent with its 80 % interval from the bootstrap."""

    term: int
    """Place of the term."""
    factor: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class FittedExpression:
    """An expression that was fitted to a table of runs, with its intervals and what it was fitted to."""

    expression: Expression
    table: RunTable
    """The runs, sorted by group."""
    ensemble: tuple[Expression, ...]
    """Fits to resampled runs, and other forms that do about as well."""
    exponents: tuple[ExponentInterval, ...]
    kriging: Kriging
    """It corrects the expression by what the runs near a point leave."""
    spread: Spread
    error_inside: float
    """Mean absolute relative error on the runs that were fitted."""
    error_held_out: float | None
    """Mean absolute relative error on runs that were held out as users extrapolate; None where no column has the values
    for that."""
    error_random: float
    """The same on runs that were held out at random."""
    error_constant: float
    """The same of a constant time in place of the expression."""
    strength: float
    """Strength of the regularisation, chosen by held-out rows."""
    warnings: tuple[str, ...] = ()

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        """Return the measured range of each column."""
        return {name: (float(values.min()), float(values.max())) for name, values in self.table.factors.items()}

    @property
    def scaling(self) -> frozenset[str]:
        """Return the columns that count members and vary: what a job is scaled by."""
        return frozenset(
            name
            for name, values in self.table.factors.items()
            if role_of(name).is_count and values.min() < values.max()
        )

    def predict(self, points: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> RunPrediction:
        """Predict the times of points.

        Args:
            points: values of all columns, and of the group columns where there are groups: lists by column, or one
                mapping for each point.

        Raises:
            UsageError: a column that is missing, unknown or not positive, or a group that no run belongs to.
        """
        return self.predict_points(self.points(points))

    def predict_points(self, asked: Points) -> RunPrediction:
        """Predict the times of points that were read."""
        times_s = self.times_s(asked)
        ranges = ranges_of(self.table.factors)
        left = self.kriging.at(asked.columns, asked.codes)[1]
        disagreement = np.sqrt((self.disagreements(asked) ** 2).mean(axis=0))
        sigma = self.spread.sigma(left, disagreement, steps_beyond(ranges, asked.columns))
        low_s, high_s = self.spread.bounds(times_s, sigma)
        return RunPrediction(times_s, low_s, high_s, outside(ranges, asked.columns))

    def times_s(self, points: Points) -> Floats:
        """Return the predicted seconds of points."""
        plain = np.maximum(self.expression.times_s(points.columns, points.codes), TINY_S)
        return plain * self.corrections(points)

    def corrections(self, points: Points) -> Floats:
        """Return by which factor the runs near points correct the expression, shape ``(points,)``."""
        return np.exp(self.kriging.at(points.columns, points.codes)[0])

    def disagreements(self, points: Points) -> Floats:
        """Return logarithms of the times of the ensemble over those of the expression, shape ``(members, points)``."""
        return disagreements(self.expression, self.ensemble, points.columns, points.codes)

    def parts(self, points: Points) -> Floats:
        """Return the share of each term in the time of each point, shape ``(points, terms)``."""
        parts_s = self.expression.parts_s(points.columns, points.codes)
        return parts_s / np.maximum(parts_s.sum(axis=1, keepdims=True), TINY_S)

    def listed(self, points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Read points and return them with numbers in place of texts, columns in the order of the table."""
        asked = self.points(points)
        return [self.named(asked, place) for place in range(len(asked))]

    def named(self, points: Points, place: int) -> dict[str, Any]:
        """Return one point with the names of its columns and groups."""
        groups = values_of(self.expression.groups[points.codes[place]], self.table.group_names)
        values = {name: float(column[place]) for name, column in points.columns.items()}
        return {name: int(value) if value.is_integer() else value for name, value in values.items()} | groups

    def points(self, points: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Points:
        """Read points; arguments and errors as of ``predict``."""
        return read_points(self.table, points)


def disagreements(
    expression: Expression, ensemble: Sequence[Expression], columns: Mapping[str, Floats], codes: Codes
) -> Floats:
    """Return logarithms of the times of an ensemble over those of an expression, shape ``(members, points)``."""
    plain = np.log(np.maximum(expression.times_s(columns, codes), TINY_S))
    others = [np.log(np.maximum(one.times_s(columns, codes), TINY_S)) for one in ensemble]
    return np.stack([np.clip(one - plain, -3, 3) for one in others])
