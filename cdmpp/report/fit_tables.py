"""Tables on a fitted expression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cdmpp.expression.fitted_expression import FittedExpression
from cdmpp.expression.suggestion import SuggestedRun
from cdmpp.expression.takeover import Takeover
from cdmpp.report.fit_rows import crossing_row, point_text, run_rows, shown_expression, suggested_rows, term_rows
from cdmpp.report.report import Column, Row, Table
from cdmpp.units import SHARE

NEAR_RUNS = "How far the runs near a point correct the expression there (kriging of residuals)."


def _columns_of(fitted: FittedExpression) -> tuple[Column, ...]:
    table = fitted.table
    return (
        *(Column(name, name, kind="text") for name in table.group_names),
        *(Column(name, name) for name in table.factors),
    )


def prediction_table(fitted: FittedExpression, predicted: Sequence[Row]) -> Table:
    """Show predicted points."""
    columns = (
        *_columns_of(fitted),
        Column("time_s", "predicted", "s", digits=4),
        Column("low_s", "80 % low", "s"),
        Column("high_s", "80 % high", "s"),
        Column("outside", "beyond the range", kind="text", is_optional=True),
        Column("correction", "near runs", SHARE, meaning=NEAR_RUNS, rank=2),
        Column("largest_term", "largest term", kind="text", rank=1),
    )
    return Table("Predictions", columns, predicted)


def suggestion_table(fitted: FittedExpression, suggested: Sequence[SuggestedRun]) -> Table:
    """Show runs to make next."""
    columns = (
        *_columns_of(fitted),
        Column("time_s", "predicted", "s"),
        Column("width_before", "interval before", SHARE, meaning="Mean width of the intervals, as a part of the time."),
        Column("width_after", "with this run", SHARE, meaning="The same as it is expected once the run is made."),
    )
    return Table("Runs to make next", columns, suggested_rows(suggested), caption="Each with those above it made")


def term_table(fitted: FittedExpression, base: Mapping[str, Any]) -> Table:
    """Show the terms at a point."""
    where = point_text(base)
    columns = (
        Column("term", "term", kind="text"),
        Column("share", "share", SHARE, meaning=f"Part of the time at {where}."),
        Column("exponents", "exponents", kind="text", meaning="With their 80 % intervals, by fits to resampled runs."),
    )
    caption = f"Shares at {where}. Fixed: an exponent that is known or plausible, and was not fitted"
    return Table("Terms", columns, term_rows(fitted, base), caption)


def crossing_table(fitted: FittedExpression, crossings: Sequence[Takeover], base: Mapping[str, Any]) -> Table:
    """Show from which value of a column on another term is the largest."""
    columns = (
        Column("column", "along", kind="text"),
        Column("value", "from"),
        Column("before", "largest before", kind="text"),
        Column("after", "largest from there", kind="text"),
        Column("is_outside", "beyond the range", kind="text"),
    )
    rows = [crossing_row(fitted, one) for one in crossings]
    return Table("Where another term becomes the largest", columns, rows, f"All other columns as at {point_text(base)}")


def constant_table(fitted: FittedExpression, base: Mapping[str, Any]) -> Table:
    """Show the constants of each group, of the terms that are shown."""
    expression = shown_expression(fitted, base)
    names = [f"a{place}" for place in range(1, len(expression.terms) + 1)]
    columns = (Column("group", "group", kind="text"), *(Column(f"{name}_s", name, "s") for name in names))
    rows = [
        {"group": group, **{f"{name}_s": value for name, value in zip(names, own, strict=True)}}
        for group, own in zip(expression.groups, expression.constants, strict=True)
    ]
    return Table("Constants", columns, rows)


def run_table(fitted: FittedExpression) -> Table:
    """Show the runs with their fitted times."""
    columns = (
        *_columns_of(fitted),
        Column("measured_s", "measured", "s", digits=4),
        Column("fitted_s", "fitted", "s", digits=4),
        Column("error", "error", SHARE),
    )
    return Table("Runs", columns, run_rows(fitted))
