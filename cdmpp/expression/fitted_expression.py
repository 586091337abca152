"""FittedExpression: an expression with everything that a prediction by it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cdmpp.errors import UsageError, some
from cdmpp.expression.expression import TINY_S, Expression
from cdmpp.expression.kriging import Kriging
from cdmpp.expression.run_table import RunTable
from cdmpp.expression.spread import Spread, beyond_range
from cdmpp.platform.limits import shown

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Points:
    """Configurations of runs."""

    columns: Mapping[str, Floats]
    """Column -> its values, shape ``(points,)``."""
    codes: Codes
    """Place of the group of each point."""


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
    """What a fit returns."""

    expression: Expression
    table: RunTable
    """The runs, sorted by group."""
    ensemble: tuple[Expression, ...]
    """Fits to resampled runs, and other forms that do about as well."""
    exponents: tuple[ExponentInterval, ...]
    spread: Spread
    error_inside: float
    """Mean absolute relative error on the runs that were fitted."""
    error_held_out: float
    """Mean absolute relative error on runs that were held out as users extrapolate; of the fit if none could be."""
    error_random: float
    """The same on runs that were held out at random."""
    error_constant: float
    """The same of a constant time in place of the expression."""
    strength: float
    """Strength of the regularisation, chosen by held-out rows."""
    warnings: tuple[str, ...] = ()

    @cached_property
    def kriging(self) -> Kriging:
        """Return what the runs near a point correct the expression by."""
        return Kriging.of_fit(self.expression, self.table.factors, self.table.codes, self.table.times_s)

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        """Return the measured range of each column."""
        return {name: (float(values.min()), float(values.max())) for name, values in self.table.factors.items()}

    @property
    def scaling(self) -> frozenset[str]:
        """Return the columns that say what a run is run on and split over."""
        return scaling_columns(self.expression)

    def predict(self, points: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> RunPrediction:
        """Predict the times of points.

        Args:
            points: values of all columns, and of the group columns where there are groups: lists by column, or one
                mapping for each point.

        Raises:
            UsageError: a column that is missing, unknown or not positive, or a group that no run belongs to.
        """
        asked = self.points(points)
        times_s = self.times_s(asked)
        far, outside = beyond_range(self.ranges, asked.columns)
        left = self.kriging.at(asked.columns, asked.codes)[1]
        sigma = self.spread.sigma(left, np.sqrt((self.disagreements(asked) ** 2).mean(axis=0)), far)
        low_s, high_s = self.spread.bounds(times_s, sigma)
        return RunPrediction(times_s, low_s, high_s, tuple(outside))

    def times_s(self, points: Points) -> Floats:
        """Return the predicted seconds of points."""
        plain = np.maximum(self.expression.times_s(points.columns, points.codes), TINY_S)
        return plain * np.exp(self.kriging.at(points.columns, points.codes)[0])

    def disagreements(self, points: Points) -> Floats:
        """Return logarithms of the times of the ensemble over those of the expression, shape ``(members, points)``."""
        return disagreements(self.expression, self.ensemble, points.columns, points.codes)

    def parts(self, points: Points) -> Floats:
        """Return the share of each term in the time of each point, shape ``(points, terms)``."""
        parts_s = self.expression.parts_s(points.columns, points.codes)
        return parts_s / np.maximum(parts_s.sum(axis=1, keepdims=True), TINY_S)

    def named(self, points: Points, place: int) -> dict[str, Any]:
        """Return one point with the names of its columns and groups."""
        labels = self.expression.groups[points.codes[place]].split("/")
        groups = dict(zip(self.table.group_names, labels, strict=False))
        return {name: float(values[place]) for name, values in points.columns.items()} | groups

    def points(self, points: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Points:
        """Read points; arguments and errors as of ``predict``."""
        needed = [*self.table.factors, *self.table.group_names]
        if isinstance(points, Mapping):
            given: Mapping[str, Sequence[Any]] = {
                name: np.atleast_1d(values).tolist() for name, values in points.items()
            }
        else:
            for point in points:
                if missing := [name for name in needed if name not in point]:
                    raise UsageError(f"the point has no {missing[0]}: give {some(needed, ', ')}")
            given = {name: [point[name] for point in points] for name in dict.fromkeys(k for p in points for k in p)}
        if missing := [name for name in needed if name not in given]:
            raise UsageError(f"the point has no {missing[0]}: give {some(needed, ', ')}")
        if unknown := [name for name in given if name not in needed]:
            raise UsageError(
                f"the point has {shown(unknown[0])}, which the fit does not have: give {some(needed, ', ')}"
            )
        columns = {}
        for name in self.table.factors:
            try:
                values = np.array(given[name], dtype=np.float64)
            except (TypeError, ValueError):
                raise UsageError(f"{name} of the point is {shown(given[name])}: expected numbers above 0") from None
            if not np.all(np.isfinite(values) & (values > 0)):
                raise UsageError(f"{name} of the point is {shown(given[name])}: expected numbers above 0")
            columns[name] = values
        rows = len(next(iter(columns.values())))
        keys = [given[name] for name in self.table.group_names]
        labels = ["/".join(map(str, key)) for key in zip(*keys, strict=True)] if keys else [""] * rows
        if unknown := [label for label in labels if label not in self.expression.groups]:
            known = some(list(self.expression.groups), ", ")
            raise UsageError(f"no run is of the group {shown(unknown[0])}: expected one of {known}")
        return Points(columns, np.array([self.expression.groups.index(label) for label in labels], dtype=np.intp))


def disagreements(
    expression: Expression, ensemble: Sequence[Expression], columns: Mapping[str, Floats], codes: Codes
) -> Floats:
    """Return logarithms of the times of an ensemble over those of an expression, shape ``(members, points)``."""
    plain = np.log(np.maximum(expression.times_s(columns, codes), TINY_S))
    others = [np.log(np.maximum(one.times_s(columns, codes), TINY_S)) for one in ensemble]
    return np.stack([np.clip(one - plain, -3, 3) for one in others])


def scaling_columns(expression: Expression) -> frozenset[str]:
    """Return the columns that say what a run is run on and split over."""
    return frozenset(one.name for one in expression.factors if one.kind == "column" and one.role.is_count)
