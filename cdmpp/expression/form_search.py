"""Search of a form: terms are added one by one, exponents follow, and rows held out as users extrapolate decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdmpp.expression.candidates import Candidates
from cdmpp.expression.design import Design
from cdmpp.expression.exponents import ExponentFit, plausible, polish, squared_errors
from cdmpp.expression.folds import Fold
from cdmpp.expression.form import Form

Floats = npt.NDArray[np.float64]
_SCREENED, _KEPT, _BEAM = 48, 4, 3
"""Candidates that are tried with exponents as they are, those whose exponents are fitted, and forms that go on."""
_COMPLEX = 0.01
"""What a constant or an exponent costs, as a part of the error."""
_INSIDE = 0.35
"""Weight of the logarithm of the error on fitted rows; the rest is that of held-out ones."""
_FLOOR = 2e-3
"""Errors below this are alike."""


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
    """What is minimised."""


def score(design: Design, form: Form, folds: Sequence[Fold], strength: float, steps: int = 6) -> ScoredForm:
    """Fit a form to all rows and without each fold, and score it.

    Fits of folds begin at plausible exponents: those of all rows have seen what is held out.
    """
    snapped = form.at(np.concatenate([plausible(design, form), form.start[form.powers :]]))
    fit = polish(design, snapped if np.isinf(strength) else form, design.every, strength, steps)
    inside = float(np.abs(squared_errors(design, fit, design.every)).mean())
    held = []
    for fold in folds:
        again = polish(design, snapped, fold.trained, strength, steps)
        held.append(float(np.minimum(np.abs(squared_errors(design, again, fold.held)), 2.0).mean()))
    return _scored(design, fit, strength, inside, float(np.mean(held)) if held else inside)


def grow(design: Design, folds: Sequence[Fold], strength: float, most_terms: int) -> Iterator[tuple[ScoredForm, ...]]:
    """Yield the best forms of 1, 2, ... terms, best first."""
    candidates = Candidates.of(design)
    beam: list[ScoredForm] = []
    for _ in range(most_terms):
        tried = dict[Form, ScoredForm]()
        for form in [one.fit.form for one in beam] or [Form(())]:
            for grown in _grown(design, candidates, form, folds):
                if grown not in tried:
                    tried[grown] = score(design, grown, folds, strength)
        beam = sorted(tried.values(), key=lambda one: one.score)[:_BEAM]
        if not beam:
            return
        yield tuple(beam)


def _grown(design: Design, candidates: Candidates, form: Form, folds: Sequence[Fold]) -> list[Form]:
    """The form with one more term, for the most promising candidates."""
    here = form.columns(design, form.start[None])
    if form.terms:
        relative = design.relative(here, design.constants(here, design.every), design.every)[0]
    else:
        relative = np.zeros(len(design.table))
    places = candidates.best(design, here[0], relative, _SCREENED)
    if not places:
        return []
    tried = np.concatenate([np.repeat(here, len(places), axis=0), candidates.columns[:, places].T[:, :, None]], axis=2)
    inside, held = _fixed_errors(design, tried, folds)
    logs = _INSIDE * np.log(inside + _FLOOR) + (1 - _INSIDE) * np.log(held + _FLOOR)
    logs += _COMPLEX * np.array([len(candidates.atoms[place].factors) for place in places])
    best = [places[i] for i in np.argsort(logs, kind="stable")[:_KEPT]]
    return [Form((*form.terms, (candidates.atoms[place],)), form.log_ratios) for place in best]


def _fixed_errors(design: Design, columns: Floats, folds: Sequence[Fold]) -> tuple[Floats, Floats]:
    """Errors of forms with exponents as they are, shape ``(forms,)`` each: on all rows, and on held-out ones."""

    def error(trained: npt.NDArray[np.intp], held: npt.NDArray[np.intp]) -> Floats:
        relative = design.relative(columns, design.constants(columns, trained), held)
        return np.minimum(np.abs(relative - 1.0), 2.0).mean(axis=1)

    inside = error(design.every, design.every)
    held = [error(fold.trained, fold.held) for fold in folds]
    return inside, np.mean(held, axis=0) if held else inside


def _scored(design: Design, fit: ExponentFit, strength: float, inside: float, held_out: float) -> ScoredForm:
    size = len(fit.form.terms) + fit.form.powers + len(fit.form.log_ratios)
    value = _INSIDE * np.log(inside + _FLOOR) + (1 - _INSIDE) * np.log(held_out + _FLOOR) + _COMPLEX * size
    return ScoredForm(fit, strength, inside, held_out, float(value))
