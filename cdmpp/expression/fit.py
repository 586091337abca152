"""Fit: from a table of runs to a fitted expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from cdmpp.errors import UsageError
from cdmpp.expression.anchor import Anchor, choices
from cdmpp.expression.design import Design
from cdmpp.expression.exponents import ExponentFit, evolve, polish
from cdmpp.expression.expression import Expression
from cdmpp.expression.fitted_expression import (
    TINY_S,
    ExponentInterval,
    FittedExpression,
    disagreements,
    scaling_columns,
)
from cdmpp.expression.folds import Fold, extrapolating_folds, random_folds
from cdmpp.expression.form import Atom
from cdmpp.expression.form_search import search
from cdmpp.expression.judge import Judge, ScoredForm
from cdmpp.expression.run_table import RunTable
from cdmpp.expression.spread import Spread, beyond_range
from cdmpp.expression.term import Product, Term
from cdmpp.platform.limits import SEED, Limits, check_fields, numbers

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
Progress = Callable[[float, str], None]
"""Called with the part of the work that is done, from 0 to 1, and what is done now."""
_STRENGTHS = (1e-4, 1e-3, 1e-2, np.inf)
_SEARCH = 0.45
"""Part of the budget in which forms are searched."""
_FOLD_RESAMPLES = 8
_OTHERS, _NEAR = 6, 0.15
"""Other forms that join the ensemble at most, and the score that they may have above the best."""
_EVALUATIONS_A_SECOND = 600
"""Costs of exponents that a second of the budget stands for, so that a budget gives the same answer everywhere."""


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit."""

    LIMITS: ClassVar = {
        "seed": SEED,
        "budget_s": numbers(0, 1e5, "seconds", above=True),
        "most_terms": Limits(1, 12, "terms"),
        "resamples": Limits(2, 1000, "fits"),
    }

    seed: int = 0
    """Of the search and of the bootstrap: the same seed gives the same answer."""
    budget_s: float = 20.0
    """About how long a fit may take. It is translated into a number of evaluations, so that answers do not depend on
    the speed of the machine."""
    most_terms: int = 6
    """Terms of an expression at most."""
    resamples: int = 40
    """Fits to resampled runs, for intervals."""

    def __post_init__(self) -> None:
        check_fields(self, "fit.")


def fit_runs(
    table: RunTable, settings: FitSettings | None = None, progress: Progress | None = None
) -> FittedExpression:
    """Fit an expression of run time to a table of runs.

    Args:
        table: the runs.
        settings: of the search; None: the defaults.
        progress: told what is done.

    Raises:
        UsageError: fewer runs than the simplest expression has constants.
    """
    settings = settings or FitSettings()
    tell = progress or (lambda share, what: None)
    design = Design.of(table)
    table = design.table
    groups, rows = len(table.groups), len(table)
    if rows < 3 or rows < 2 * groups:
        raise UsageError(
            f"{rows} runs in {groups} group{'s' * (groups > 1)} are fewer than the constants of any expression: "
            "make more runs, or leave out the groups"
        )
    folds = extrapolating_folds(design) or random_folds(design, min(4, rows), settings.seed)
    tell(0.0, "terms")
    found, others = _best(design, folds, settings, tell)
    tell(0.7, "intervals")
    expression = expression_of(design, found.fit)
    ensemble = _resampled(design, found, design.every, settings.resamples, settings.seed)
    anchor = _anchor(design, found, folds)
    random = random_folds(design, min(4, rows), settings.seed)
    residuals, error_constant = _held_at_random(design, found, random)
    spread = _spread(design, found, folds, residuals, anchor)
    fitted = FittedExpression(
        expression, table, tuple(expression_of(design, one) for one in [*ensemble, *others]),
        _intervals(design, found.fit, ensemble), anchor, spread, found.inside, found.held_out,
        float(np.abs(np.exp(-residuals) - 1).mean()), error_constant, found.strength, table.warnings,
    )  # fmt: skip
    tell(1.0, "done")
    return replace(fitted, warnings=(*fitted.warnings, *_doubts(fitted)))


def _best(
    design: Design, folds: Sequence[Fold], settings: FitSettings, tell: Progress
) -> tuple[ScoredForm, list[ExponentFit]]:
    """The form that extrapolates best: searched, its exponents evolved, its regularisation chosen; and near ones."""
    most = max(1, min(settings.most_terms, len(design.table) // (3 * len(design.table.groups))))
    judge = Judge(design, folds, 1e-3)
    pool = list[ScoredForm]()
    for step, found in enumerate(search(judge, most, _SEARCH * settings.budget_s), 1):
        pool = found
        tell(0.4 * step / (step + 3), "terms")
    evaluations = int(_EVALUATIONS_A_SECOND * settings.budget_s) // (2 * len(design.table.groups))
    found = pool[:1]
    for place, one in enumerate(pool[:2]):
        evolved = evolve(design, one.fit.form, design.every, 1e-3, evaluations, settings.seed)
        found += [judge.score(form, strength) for form in (one.fit.form, evolved.form) for strength in _STRENGTHS]
        tell(0.4 + 0.15 * (place + 1), "exponents")
    best = min(found, key=lambda one: one.score)
    near = [one.fit for one in pool[:_OTHERS] if one.score < best.score + _NEAR and one.fit.form != best.fit.form]
    return best, near


def _resampled(design: Design, found: ScoredForm, rows: Rows, count: int, seed: int) -> list[ExponentFit]:
    """Fits to runs that are drawn again from each group, among ``rows``."""
    rng = np.random.default_rng(seed)
    codes, fits = design.table.codes[rows], list[ExponentFit]()
    places = [rows[codes == group] for group in np.unique(codes)]
    for _ in range(count):
        drawn = np.sort(np.concatenate([rng.choice(own, len(own)) for own in places]))
        fits.append(polish(design, found.fit.form, drawn, found.strength, 3))
    return fits


def _anchor(design: Design, found: ScoredForm, folds: Sequence[Fold]) -> Anchor:
    """The anchor under which held-out runs are predicted best."""
    tried = choices()
    errors = np.zeros(len(tried))
    for fold in folds:
        predict = _fold_predictor(design, found, fold)
        measured = design.table.times_s[fold.held]
        errors += [float(np.minimum(np.abs(predict(one) / measured - 1), 2.0).mean()) for one in tried]
    best = int(np.argmin(errors))
    return tried[best] if errors[best] < 0.97 * errors[0] else tried[0]


def _fold_predictor(design: Design, found: ScoredForm, fold: Fold) -> Callable[[Anchor], Floats]:
    """Seconds of the held-out rows of a fold under an anchor, by a fit to the others."""
    again = expression_of(design, polish(design, found.fit.form, fold.trained, found.strength, 6))
    table = design.table
    inner = {name: values[fold.trained] for name, values in table.factors.items()}
    codes = table.codes[fold.trained]
    residuals = np.log(table.times_s[fold.trained] / np.maximum(again.times_s(inner, codes), TINY_S))
    points = {name: values[fold.held] for name, values in table.factors.items()}, table.codes[fold.held]
    scaling = scaling_columns(again)
    return lambda anchor: anchor.correct(again.times_s, (inner, codes, residuals), scaling, points)


def _held_at_random(design: Design, found: ScoredForm, folds: Sequence[Fold]) -> tuple[Floats, float]:
    """Logarithmic residuals of rows that are held out at random, and the error of a constant there."""
    residuals, constant = np.zeros(len(design.table)), list[Floats]()
    for fold in folds:
        times_s = _fold_predictor(design, found, fold)(Anchor())
        measured = design.table.times_s[fold.held]
        residuals[fold.held] = np.log(measured / np.maximum(times_s, TINY_S))
        for group in range(len(design.table.groups)):
            known = design.table.times_s[fold.trained][design.table.codes[fold.trained] == group]
            own = measured[design.table.codes[fold.held] == group]
            if len(known) and len(own):
                constant.append(np.abs(np.median(known) / own - 1))
    return np.clip(residuals, -5, 5), float(np.concatenate(constant).mean()) if constant else np.inf


def _spread(design: Design, found: ScoredForm, folds: Sequence[Fold], residuals: Floats, anchor: Anchor) -> Spread:
    judged = []
    for fold in folds:
        if not fold.factor:
            continue
        times_s = _fold_predictor(design, found, fold)(anchor)
        left = np.clip(np.log(design.table.times_s[fold.held] / np.maximum(times_s, TINY_S)), -3, 3)
        ranges = {
            name: (float(values[fold.trained].min()), float(values[fold.trained].max()))
            for name, values in design.table.factors.items()
        }
        points = {name: values[fold.held] for name, values in design.table.factors.items()}
        again = polish(design, found.fit.form, fold.trained, found.strength, 6)
        drawn = _resampled(design, replace(found, fit=again), fold.trained, _FOLD_RESAMPLES, 0)
        members = [expression_of(design, one) for one in drawn]
        away = disagreements(expression_of(design, again), members, points, design.table.codes[fold.held])
        judged.append((left, np.sqrt((away**2).mean(axis=0)), beyond_range(ranges, points)[0]))
    return Spread.calibrated(residuals, judged)


def expression_of(design: Design, fit: ExponentFit) -> Expression:
    """Turn a fitted form into an expression: constants in seconds, factors by name, terms without effect left out."""
    form, constants = fit.form, fit.constants.copy()
    terms, ratio = list[Term](), 0
    for place, atoms in enumerate(form.terms):
        products = [_product(design, atom) for atom in atoms]
        scales = [_scale(design, atom) for atom in atoms]
        constants[:, place] *= scales[0]
        if len(atoms) > 1:
            terms.append(Term(products[0], products[1], float(np.exp(form.log_ratios[ratio]) * scales[1] / scales[0])))
            ratio += 1
        else:
            terms.append(Term(products[0]))
    kept = [place for place in range(len(terms)) if constants[:, place].any()]
    return Expression(
        design.table.names, tuple(terms[place] for place in kept),
        tuple(tuple(float(one) for one in own[kept]) for own in constants),
        design.table.groups, design.table.time_name,
    )  # fmt: skip


def _product(design: Design, atom: Atom) -> Product:
    powers = {
        design.factors[factor].name: round(power, 6)
        for factor, power in zip(atom.factors, atom.powers, strict=True)
        if abs(power) >= 5e-7
    }
    key = design.shape_keys[atom.shape]
    return Product(powers, None if key is None else (key[0], design.factors[key[1]].name))


def _scale(design: Design, atom: Atom) -> float:
    """What a constant is multiplied by where factors are no longer relative to their middles."""
    powers = np.round(np.array(atom.powers), 6)
    return float(np.exp(-(powers * np.log(design.middles[list(atom.factors)])).sum())) if len(powers) else 1.0


def _intervals(design: Design, fit: ExponentFit, ensemble: Sequence[ExponentFit]) -> tuple[ExponentInterval, ...]:
    found, place = list[ExponentInterval](), 0
    vectors = np.stack([one.form.start for one in ensemble])
    for number, term in enumerate(fit.form.terms):
        for atom in term:
            for factor, power in zip(atom.factors, atom.powers, strict=True):
                low, high = np.quantile(vectors[:, place], [0.1, 0.9])
                found.append(ExponentInterval(number, design.factors[factor].name, power, float(low), float(high)))
                place += 1
    return tuple(found)


def _doubts(fitted: FittedExpression) -> tuple[str, ...]:
    doubts = []
    if fitted.error_random >= 0.95 * fitted.error_constant:
        doubts.append(
            "the factors do not explain the times: on held-out runs the expression is off by "
            f"{100 * fitted.error_random:.0f} %, and a constant time by {100 * fitted.error_constant:.0f} %"
        )
    return tuple(doubts)
