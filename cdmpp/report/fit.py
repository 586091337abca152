"""The report on a fitted expression: what was found, how well, what it predicts, which runs to make next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cdmpp.expression.fitted_expression import FittedExpression
from cdmpp.expression.suggestion import SuggestedRun
from cdmpp.expression.takeover import Takeover, takeovers
from cdmpp.report.fit_charts import fit_charts
from cdmpp.report.fit_rows import (
    crossing_row,
    point_text,
    prediction_rows,
    run_rows,
    shares_at,
    shown_expression,
    suggested_rows,
    typical_point,
)
from cdmpp.report.fit_tables import (
    NEAR_RUNS,
    constant_table,
    crossing_table,
    prediction_table,
    run_table,
    suggestion_table,
    term_table,
)
from cdmpp.report.report import Report, Row, Total
from cdmpp.units import SHARE

_LEVEL = 0.8
_NOTES = {
    "held out": "Mean error on runs that were held out as users extrapolate: those with the largest value of a column.",
    "held out at random": "Mean error on runs that were held out by lot, so within the range of the others.",
    "constant": "Mean error of one time for all runs: a fit that is no better says nothing.",
    "near runs": NEAR_RUNS,
}


def fit_report(
    fitted: FittedExpression,
    asked: Sequence[Mapping[str, Any]] = (),
    suggested: Sequence[SuggestedRun] = (),
    wanted: int = 0,
) -> Report:
    """Report an expression.

    Args:
        fitted: the fit.
        asked: points to predict.
        suggested: runs to make next.
        wanted: how many of them were asked for.
    """
    expression, table = fitted.expression, fitted.table
    base = dict(asked[0]) if asked else typical_point(fitted)
    crossings = takeovers(fitted, base)
    predicted = prediction_rows(fitted, asked)
    here, shares = fitted.points([base]), shares_at(fitted, base)
    tables = [
        *([prediction_table(fitted, predicted)] if asked else []),
        *([suggestion_table(fitted, suggested)] if suggested else []),
        term_table(fitted, base),
        *([crossing_table(fitted, crossings, base)] if crossings else []),
        *([constant_table(fitted, base)] if len(expression.groups) > 1 else []),
        run_table(fitted),
    ]
    first = predicted[0] if predicted else None
    return Report(
        title=f"{expression.time_name} of {len(table)} runs by {', '.join(table.factors)}",
        answer=_answer(fitted, predicted, suggested, base, shares, crossings),
        totals=(
            _expression_total(fitted, base, shares),
            *(() if first is None else (_predicted_total(fitted, first),)),
            Total("error", fitted.error_inside, SHARE, note="mean, on the runs that were fitted"),
            *_held_out_totals(fitted),
            Total("constant", fitted.error_constant, SHARE, note="error of one time for all runs"),
            Total("near runs", float(fitted.corrections(here)[0] - 1), SHARE, note="is added to the expression there"),
        ),
        tables=tuple(tables),
        warnings=(*fitted.warnings, *_outside(predicted), *_few(suggested, wanted)),
        charts=fit_charts(fitted, base),
        notes=_NOTES,
    )


def _expression_total(fitted: FittedExpression, base: Mapping[str, Any], shares: np.ndarray) -> Total:
    """The expression as it is shown: the largest terms at a point, and how much the others are there."""
    shown = shown_expression(fitted, base)
    head = shown.text().splitlines()[0].removesuffix(", with")
    others = len(fitted.expression.terms) - len(shown.terms)
    if not others:
        return Total("expression", head)
    left = 1 - float(np.sort(shares)[others:].sum())
    note = f"the largest terms at {point_text(base)}; {others} smaller ones are {100 * left:.1f} % there"
    return Total("expression", f"{head} + ...", note=note)


def _held_out_totals(fitted: FittedExpression) -> tuple[Total, ...]:
    at_random = Total("held out at random", fitted.error_random, SHARE, note="runs drawn by lot, fitted without them")
    if fitted.error_held_out is None:
        return (at_random,)
    note = "runs with the largest values, fitted without them"
    return (Total("held out", fitted.error_held_out, SHARE, note=note), at_random)


def _few(suggested: Sequence[SuggestedRun], wanted: int) -> tuple[str, ...]:
    if len(suggested) >= wanted:
        return ()
    return (f"{len(suggested)} of {wanted} runs are suggested: no other that can be made would shorten the intervals",)


def _predicted_total(fitted: FittedExpression, row: Row) -> Total:
    where = point_text({name: row[name] for name in (*fitted.table.factors, *fitted.table.group_names)})
    return Total("predicted", row["time_s"], "s", 4, interval=(_LEVEL, row["low_s"], row["high_s"]), note=where)


def _outside(predicted: Sequence[Row]) -> tuple[str, ...]:
    names = dict.fromkeys(name for row in predicted for name in row["outside"])
    if not names:
        return ()
    return (f"predicted beyond the measured range of {', '.join(names)}: the interval is wider there",)


def _answer(
    fitted: FittedExpression,
    predicted: Sequence[Row],
    suggested: Sequence[SuggestedRun],
    base: Mapping[str, Any],
    shares: np.ndarray,
    crossings: Sequence[Takeover],
) -> dict[str, Any]:
    expression = fitted.expression
    constant = fitted.error_constant
    return {
        "text": expression.text(),
        "latex": expression.latex(),
        "python": expression.python(),
        "expression": expression.json,
        "exponents": [asdict(one) for one in fitted.exponents],
        "error_inside": fitted.error_inside,
        "error_held_out": fitted.error_held_out,
        "error_random": fitted.error_random,
        "error_constant": constant if np.isfinite(constant) else None,
        "strength": fitted.strength if np.isfinite(fitted.strength) else None,
        "ranges": {name: list(ends) for name, ends in fitted.ranges.items()},
        "warnings": list(fitted.warnings),
        "predictions": list(predicted),
        "suggestions": suggested_rows(suggested),
        "point": dict(base),
        "shares": [float(share) for share in shares],
        "takeovers": [crossing_row(fitted, one) for one in crossings],
        "runs": run_rows(fitted),
    }
