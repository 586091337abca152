"""Fit: from a table of runs to a fitted expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cdmpp.errors import UsageError
from cdmpp.expression.blend import Blend
from cdmpp.expression.design import Design
from cdmpp.expression.exponents import ExponentFit, evolve
from cdmpp.expression.fitted_expression import FittedExpression
from cdmpp.expression.folds import Fold, extrapolating_folds, random_folds, widening_folds
from cdmpp.expression.form_search import search
from cdmpp.expression.held_out import HeldOut, Refittable, held_out, plain_error, plain_residuals
from cdmpp.expression.judge import Judge, ScoredForm
from cdmpp.expression.kriging import Kriging
from cdmpp.expression.run_table import RunTable
from cdmpp.expression.searched import Searched, expression_of, resampled
from cdmpp.expression.spread import Spread
from cdmpp.expression.stepwise import stepwise
from cdmpp.platform.limits import SEED, Limits, check_fields, checked, numbers

Progress = Callable[[float, str], None]
"""A function that is called with the part of the work that is done, from 0 to 1, and what is done now."""
_STRENGTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, np.inf)
_WIDTH = 0.5
"""Standard deviation that exponents are taken to have about plausible ones."""
_SEARCHED = (1e-6, 1e-3)
"""Bounds of the strength of the regularisation while forms are searched."""
_SEARCH = 0.45
"""Part of the budget in which forms are searched."""
_BETTER, _FAR_BETTER, _MISSED = 0.75, 0.4, 0.8
"""A searched form is preferred where it extrapolates with the first part of the error of known terms; where all columns
are recognised, with the second, and where it has the third on rows that are held out at random."""
_OFF = 0.15
"""Error of an expression on its own runs from which on it is doubted."""
_WORST = 2.0
"""A larger relative error counts as this."""
_OTHERS, _NEAR = 6, 0.15
"""Other forms that join the ensemble at most, and the score that they may have above the best."""
_FOLD_RESAMPLES = 6
"""Fits to resampled runs of each fold, at most."""
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
    """The seed of the search and of the bootstrap; the same seed gives the same answer."""
    budget_s: float = 20.0
    """About how long a fit may take. It is translated into a number of evaluations, so that answers do not depend on
    the speed of the machine."""
    most_terms: int = 6
    """Terms of an expression at most."""
    resamples: int = 40
    """Fits to resampled runs, for intervals."""

    def __post_init__(self) -> None:
        check_fields(self, "fit.")


@checked()
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
    random = random_folds(design, min(4, rows), settings.seed)
    folds = extrapolating_folds(design)
    tell(0.0, "terms")
    found, others = _best(design, folds or random, settings, tell)
    tell(0.7, "intervals")
    searched = Searched(design, found.fit, found.strength)
    if not _is_recognised(design):
        searched = _sparser(design, searched, random)
    source = _preferred(design, searched, folds or random, random)
    expression = source.refit(design.every)
    exponents, ensemble = resampled(source, design, settings.resamples, settings.seed)
    if isinstance(source, Searched):
        ensemble += tuple(expression_of(design, one) for one in others)
    near = Kriging.of_fit(expression, design.table.factors, design.table.codes, design.table.times_s)
    within, beyond = held_out(design, source, random, near), held_out(design, source, folds, near)
    draws = min(settings.resamples, _FOLD_RESAMPLES)
    wider = held_out(design, source, widening_folds(design), near, draws, settings.seed)
    spread = Spread.calibrated([one.misses for one in within], [one.misses for one in wider])
    fitted = FittedExpression(
        expression, table, ensemble, exponents, near, spread,
        float(np.abs(expression.times_s(table.factors, table.codes) / table.times_s - 1).mean()),
        _mean(beyond) if beyond else None, _mean(within),
        float(np.concatenate([one.constant_errors(design) for one in within]).mean()),
        searched.strength, table.warnings,
    )  # fmt: skip
    tell(1.0, "done")
    return replace(fitted, warnings=(*fitted.warnings, *_doubts(fitted)))


def _best(
    design: Design, folds: Sequence[Fold], settings: FitSettings, tell: Progress
) -> tuple[ScoredForm, list[ExponentFit]]:
    """The form that extrapolates best: searched, its exponents evolved, its regularisation chosen; and near ones."""
    most = max(1, min(settings.most_terms, len(design.table) // (3 * len(design.table.groups))))
    strength = _strength(design)
    judge = Judge(design, folds, strength)
    pool = list[ScoredForm]()
    for step, found in enumerate(search(judge, most, _SEARCH * settings.budget_s), 1):
        pool = found
        tell(0.4 * step / (step + 3), "terms")
    evaluations = int(_EVALUATIONS_A_SECOND * settings.budget_s) // (2 * len(design.table.groups))
    found, tried = pool[:1], [one for one in _STRENGTHS if one > 0.09 * strength]
    for place, one in enumerate(pool[:2]):
        evolved = evolve(design, one.fit.form, design.every, strength, evaluations, settings.seed)
        found += [judge.score(form, held) for form in (one.fit.form, evolved.form) for held in tried]
        tell(0.4 + 0.15 * (place + 1), "exponents")
    best = min(found, key=lambda one: one.score)
    near = [one.fit for one in pool[:_OTHERS] if one.score < best.score + _NEAR and one.fit.form != best.fit.form]
    return best, near


def _strength(design: Design) -> float:
    """Strength with which a search holds exponents at plausible ones.

    Where columns are recognised, what is plausible is known. For others Bayes' rule weighs it against the noise of the
    runs: what near runs do not tell of the logarithms of times, before any form is known.
    """
    table = design.table
    if _is_recognised(design):
        return _SEARCHED[1]
    logs = np.log(table.times_s)
    for group in range(len(table.groups)):
        logs[table.codes == group] -= logs[table.codes == group].mean()
    scale = max(float(np.abs(logs).max()), 1e-3)
    noise = scale**2 * Kriging.of(table.factors, table.codes, logs / scale).variances[2]
    return float(np.clip(noise / (len(table) * _WIDTH**2), *_SEARCHED))


def _is_recognised(design: Design) -> bool:
    return all(one.role.name for one in design.factors)


def _sparser(design: Design, searched: Searched, random: Sequence[Fold]) -> Searched:
    """The searched form after steps that all runs ask for, where it misses no more runs.

    One standard error decides. Runs are held out at random, because the search has seen what its own folds hold out.
    Exponents are not regularised: nothing is known of them.
    """
    steps = Searched(design, stepwise(design, searched.fit.form), 0.0)
    before, after = (
        np.minimum(np.abs(np.expm1(-np.concatenate(plain_residuals(design, source, random)))), _WORST)
        for source in (searched, steps)
    )
    worse = after - before
    return steps if worse.mean() <= worse.std() / np.sqrt(len(worse)) else searched


def _preferred(design: Design, searched: Searched, folds: Sequence[Fold], random: Sequence[Fold]) -> Refittable:
    """The searched form, or all known terms at once: what extrapolates better, without the help of near runs.

    A search has seen what its folds hold out. So where all columns are recognised it must extrapolate far better, and
    known terms must miss runs within the range, too; where neither can be told, known terms are preferred.
    """
    blend = Blend.of(design)

    def is_within(part: float, kind: Sequence[Fold]) -> bool:
        return plain_error(design, searched, kind) <= part * plain_error(design, blend, kind)

    if _is_recognised(design) and any(one.role.is_count for one in design.factors):
        is_better = is_within(_FAR_BETTER, folds) and is_within(_MISSED, random)
    else:
        is_better = is_within(_BETTER, folds)
    return searched if is_better else blend.shorter(folds, random)


def _mean(judged: Sequence[HeldOut]) -> float:
    return float(np.mean([one.error for one in judged]))


def _doubts(fitted: FittedExpression) -> tuple[str, ...]:
    doubts = []
    if fitted.error_random >= 0.95 * fitted.error_constant:
        doubts.append(
            "the factors do not explain the times: on runs that were held out at random the expression is off by "
            f"{100 * fitted.error_random:.0f} %, and a constant time by {100 * fitted.error_constant:.0f} %"
        )
    elif fitted.error_inside > _OFF and fitted.error_random < 0.5 * fitted.error_inside:
        doubts.append(
            f"the expression alone is off by {100 * fitted.error_inside:.0f} % on the runs that it was fitted to: "
            "predictions lean on the runs near them, and far from all runs there are none"
        )
    return tuple(doubts)
