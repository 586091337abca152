"""Judge: fits forms and scores them by rows that are held out as users extrapolate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cdmpp.expression.design import Design
from cdmpp.expression.exponents import ExponentFit, snapped, squared_errors
from cdmpp.expression.folds import Fold
from cdmpp.expression.form import Form
from cdmpp.expression.work import Work

Floats = npt.NDArray[np.float64]
_INSIDE = 0.35
"""Weight of the logarithm of the error on fitted rows; the rest is that of held-out ones."""
_FLOOR = 2e-3
"""Errors below this are alike."""
_WORST = 2.0
"""A larger relative error counts as this."""
_STEPS = 8
_HOPE, _HOPELESS = 0.6, 0.5
"""Error on held-out rows by that on fitted ones that a form is hoped to have, and how far above the best score it is
given up with that hope."""


@dataclass(frozen=True)
class ScoredForm:
    """A form, fitted to all rows, with how well it does where it was not fitted."""

    fit: ExponentFit
    strength: float
    """Strength of the regularisation."""
    inside: float
    """Mean absolute relative error on the rows of the fit."""
    held_out: float
    """The same on held-out rows, each fold weighing the same; that of the fit where there are no folds."""
    score: float
    """The number that the search minimises."""


@dataclass(frozen=True)
class Judge:
    """A judge knows the rows that are held out, and what it has scored."""

    design: Design
    folds: Sequence[Fold]
    strength: float
    """Strength of the regularisation."""
    known: dict[Form, ScoredForm] = field(default_factory=dict, repr=False)
    """Scores that are known already, by the begin of the fit."""
    work: Work = field(default_factory=Work, repr=False)
    """Fits so far."""

    def score(self, form: Form, strength: float | None = None) -> ScoredForm:
        """Fit a form to all rows and without each fold, and score it.

        Fits of folds begin at plausible exponents: those of all rows have seen what is held out.
        """
        if strength is None and form in self.known:
            return self.known[form]
        used = self.strength if strength is None else strength
        design = self.design
        plain = snapped(design, form)
        fit = self.work.polish(design, plain if np.isinf(used) else form, design.every, used, _STEPS)
        inside = float(np.abs(squared_errors(design, fit, design.every)).mean())
        price = self.price * self._size(fit)
        bound = min((one.score for one in self.known.values()), default=np.inf) + _HOPELESS
        held = np.full(len(self.folds), _HOPE * inside)
        for place, fold in enumerate(self.folds):
            if self.total(inside, held.mean()) + price > bound:
                held[:] = _WORST
                break
            again = self.work.polish(design, plain, fold.trained, used, _STEPS)
            held[place] = np.minimum(np.abs(squared_errors(design, again, fold.held)), _WORST).mean()
        held_out = float(held.mean()) if len(held) else inside
        found = ScoredForm(fit, used, inside, held_out, float(self.total(inside, held_out)) + price)
        if strength is None:
            self.known[form] = found
        return found

    def best(self, forms: Iterable[Form]) -> list[ScoredForm]:
        """Score forms, best first; those that come when the work is done are left out, but for the first."""
        scored = list[ScoredForm]()
        for one in forms:
            if scored and self.work.is_done:
                break
            scored.append(self.score(one))
        return sorted(scored, key=lambda one: one.score)

    @property
    def price(self) -> float:
        """Return what a free number of a form costs, as a part of the error: the Bayesian price and a little."""
        rows = len(self.design.table)
        return 0.004 + np.log(rows) / (2 * rows)

    @staticmethod
    def total(inside: Floats | float, held_out: Floats | float) -> Floats | float:
        """Return one number for the errors on fitted and on held-out rows."""
        return _INSIDE * np.log(inside + _FLOOR) + (1 - _INSIDE) * np.log(held_out + _FLOOR)

    def quick(self, columns: Floats) -> Floats:
        """Score forms whose exponents stay as they are, by their columns, shape ``(forms, rows, terms)``."""
        held = [self._errors(columns, fold.trained, fold.held) for fold in self.folds]
        inside = self._errors(columns, self.design.every, self.design.every)
        return np.asarray(self.total(inside, np.mean(held, axis=0) if held else inside))

    def _errors(self, columns: Floats, trained: npt.NDArray[np.intp], held: npt.NDArray[np.intp]) -> Floats:
        relative = self.design.relative(columns, self.design.constants(columns, trained), held)
        return np.minimum(np.abs(relative - 1.0), _WORST).mean(axis=1)

    def _size(self, fit: ExponentFit) -> float:
        """Count the free numbers of a form: constants above 0 and exponents; a fixed exponent counts half."""
        used = float((fit.constants > 0).any(axis=0).sum())
        more = float((fit.constants > 0).sum()) - used
        return used + 0.5 * more + len(fit.form.free) + 0.5 * (fit.form.powers - len(fit.form.free))
