"""Fit: from a table of runs to a fitted expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cdmpp.errors import UsageError
from cdmpp.expression.design import Design
from cdmpp.expression.fit_settings import FitSettings
from cdmpp.expression.fitted_expression import FittedExpression
from cdmpp.expression.folds import extrapolating_folds, random_folds, widening_folds
from cdmpp.expression.form_choice import FormChoice, Progress, is_quick
from cdmpp.expression.held_out import HeldOut, held_out
from cdmpp.expression.kriging import MOST_LEARNT, Kriging
from cdmpp.expression.run_table import RunTable
from cdmpp.expression.searched import expression_of, resampled
from cdmpp.expression.spread import Spread
from cdmpp.platform.limits import checked

_OFF = 0.15
"""Error of an expression on its own runs from which on it is doubted."""
_QUICKLY_LEARNT = 40
"""Runs that length scales are learnt from where no form is searched."""
_FOLD_RESAMPLES = 6
"""Fits to resampled runs of each fold, at most."""


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
    quick = is_quick(design, settings)
    choice = FormChoice.quick(design) if quick else FormChoice.of(design, folds or random, random, settings, tell)
    tell(0.7, "intervals")
    source = choice.source
    expression = source.refit(design.every)
    exponents, ensemble = resampled(source, design, settings.resamples, settings.seed)
    ensemble += tuple(expression_of(design, one) for one in choice.others)
    learnt = _QUICKLY_LEARNT if quick else MOST_LEARNT
    near = Kriging.of_fit(expression, table.factors, table.codes, table.times_s, learnt=learnt)
    draws = min(settings.resamples, _FOLD_RESAMPLES)
    within = held_out(design, source, random, near)
    beyond = held_out(design, source, folds, near, draws if quick else 0, settings.seed)
    wider = beyond if quick else held_out(design, source, widening_folds(design), near, draws, settings.seed)
    spread = Spread.calibrated([one.misses for one in within], [one.misses for one in wider])
    fitted = FittedExpression(
        expression, table, ensemble, exponents, near, spread,
        float(np.abs(expression.times_s(table.factors, table.codes) / table.times_s - 1).mean()),
        _mean(beyond) if beyond else None, _mean(within),
        float(np.concatenate([one.constant_errors(design) for one in within]).mean()),
        choice.strength, table.warnings,
    )  # fmt: skip
    tell(1.0, "done")
    return replace(fitted, warnings=(*fitted.warnings, *_doubts(fitted)))


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
