"""HeldOut: how well a form predicts rows that it was not fitted to, with the runs near them and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cdmpp.expression.design import Design
from cdmpp.expression.expression import TINY_S, Expression
from cdmpp.expression.fitted_expression import disagreements
from cdmpp.expression.folds import Fold, resamples
from cdmpp.expression.kriging import Kriging
from cdmpp.expression.spread import Misses

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
_WORST = 2.0
"""A larger relative error counts as this."""


class Refittable(Protocol):
    """A form of an expression, which can be fitted to any rows of its table."""

    def refit(self, rows: Rows) -> Expression:
        """Fit it to some rows."""

    def refits(self, rows: Rows, draws: Sequence[Rows]) -> tuple[Expression, ...]:
        """Fit it to each draw of some rows."""


@dataclass(frozen=True)
class HeldOut:
    """The rows of a fold, predicted by a fit to the others."""

    fold: Fold
    plain: Floats
    """Logarithm of measured over predicted time, by the expression alone."""
    residuals: Floats
    """The same, with the correction by near runs."""
    sigma: Floats
    """Standard deviation that near runs leave."""
    disagreement: Floats
    """Standard deviation of the logarithms of fits to other draws of the rows of the fit; 0 where there are none."""

    @classmethod
    def of(cls, design: Design, source: Refittable, fold: Fold, near: Kriging, draws: Sequence[Rows] = ()) -> HeldOut:
        """Fit without the rows of a fold and predict them.

        Args:
            design: of the table.
            source: what is fitted.
            fold: the rows that are held out.
            near: what near runs correct a fit to all rows by.
            draws: of the rows that are fitted.
        """
        table, expression = design.table, source.refit(fold.trained)
        known, columns, codes = table.at(fold.trained), table.at(fold.held), table.codes[fold.held]
        kriging = Kriging.of_fit(expression, known, table.codes[fold.trained], table.times_s[fold.trained], near)
        plain = _plain(design, expression, fold)
        residuals, sigma = kriging.at(columns, codes)
        others = source.refits(fold.trained, draws) if draws else (expression,)
        disagreement = np.sqrt((disagreements(expression, others, columns, codes) ** 2).mean(axis=0))
        return cls(fold, plain, plain - residuals, sigma, disagreement)

    @property
    def misses(self) -> Misses:
        """Return what a spread is fitted to."""
        return Misses(self.fold.factor, self.residuals, self.sigma, self.disagreement)

    @property
    def error(self) -> float:
        """Return the mean absolute relative error."""
        return relative_error(self.residuals)

    def constant_errors(self, design: Design) -> Floats:
        """Return the relative errors of the middle time of the other runs of the group, shape ``(held,)`` or less."""
        table, errors = design.table, [np.empty(0)]
        for group in range(len(table.groups)):
            known = table.times_s[self.fold.trained][table.codes[self.fold.trained] == group]
            own = table.times_s[self.fold.held][table.codes[self.fold.held] == group]
            if len(known) and len(own):
                errors.append(np.abs(np.median(known) / own - 1))
        return np.concatenate(errors)


def relative_error(residuals: Floats) -> float:
    """Return the mean absolute relative error of logarithmic residuals."""
    return float(np.minimum(np.abs(np.expm1(-np.clip(residuals, -5, 5))), _WORST).mean())


def held_out(
    design: Design, source: Refittable, folds: Sequence[Fold], near: Kriging, draws: int = 0, seed: int = 0
) -> list[HeldOut]:
    """Predict the rows of each fold by a fit to the others.

    Args:
        design: of the table.
        source: what is fitted.
        folds: the rows that are held out.
        near: what near runs correct a fit to all rows by.
        draws: how often the rows that are fitted are drawn again, to see how far the fits disagree.
        seed: of the draws.
    """
    return [HeldOut.of(design, source, fold, near, resamples(design, fold.trained, draws, seed)) for fold in folds]


def plain_error(design: Design, source: Refittable, folds: Sequence[Fold]) -> float:
    """Return the mean absolute relative error of the expression alone, each fold weighing the same."""
    return float(np.mean([relative_error(one) for one in plain_residuals(design, source, folds)]))


def plain_residuals(design: Design, source: Refittable, folds: Sequence[Fold]) -> list[Floats]:
    """Return logarithms of measured over predicted time, by the expression alone, of the rows of each fold."""
    return [_plain(design, source.refit(one.trained), one) for one in folds]


def _plain(design: Design, expression: Expression, fold: Fold) -> Floats:
    """Logarithm of measured over predicted time of the held-out rows, by the expression alone."""
    table = design.table
    predicted = np.maximum(expression.times_s(table.at(fold.held), table.codes[fold.held]), TINY_S)
    return np.clip(np.log(table.times_s[fold.held] / predicted), -5, 5)
