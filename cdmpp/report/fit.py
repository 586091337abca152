"""The report on a fitted expression: what was found, how well, what it predicts, which runs to make next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.expression.columns import role_of
from cdmpp.expression.fitted_expression import FittedExpression
from cdmpp.expression.points import Points
from cdmpp.expression.run_table import label_of
from cdmpp.expression.suggestion import SuggestedRun
from cdmpp.expression.takeover import Takeover, takeovers
from cdmpp.expression.writing import term_text
from cdmpp.report.charts import Bar, Bars, Chart, Plot, Point, points
from cdmpp.report.report import Column, Report, Row, Table, Total
from cdmpp.units import SHARE, quantity

_LEVEL = 0.8
_LINE = 25
"""Points of a line."""
_BEYOND = 8.0
"""A line goes on to this many times the largest value."""
_TOGETHER = frozenset({"gpus", "nodes", "dp"})
"""Roles of columns that grow together."""
_MOST_MARKS = 400
"""Runs that are drawn."""
JOINED = frozenset({"extrapolated", "80 % low", "80 % high", "equal"})
"""Series of points that are lines."""
_NOTES = {
    "held out": "Mean error on runs that were held out as users extrapolate: those with the largest value of a column.",
    "constant": "Mean error of one time for all runs: a fit that is no better says nothing.",
    "near runs": "How far the runs near a point correct the expression there (kriging of residuals).",
}


def fit_report(
    fitted: FittedExpression,
    asked: Sequence[Mapping[str, Any]] = (),
    suggested: Sequence[SuggestedRun] = (),
) -> Report:
    """Report an expression.

    Args:
        fitted: the fit.
        asked: points to predict.
        suggested: runs to make next.
    """
    expression, table = fitted.expression, fitted.table
    base = dict(asked[0]) if asked else typical_point(fitted)
    crossings = takeovers(fitted, base)
    predicted = _predictions(fitted, asked)
    head = expression.text().splitlines()[0].removesuffix(", with")
    here = fitted.points([base])
    shares = fitted.parts(here)[0]
    tables = [
        *([_prediction_table(fitted, predicted)] if asked else []),
        *([_suggestion_table(fitted, suggested)] if suggested else []),
        _terms(fitted, shares),
        *([_crossing_table(fitted, crossings)] if crossings else []),
        *([_constants(fitted)] if len(expression.groups) > 1 else []),
        _runs(fitted),
    ]
    first = predicted[0] if predicted else None
    return Report(
        title=f"{expression.time_name} of {len(table)} runs by {', '.join(table.factors)}",
        answer=_answer(fitted, predicted, suggested, base, shares, crossings),
        totals=(
            Total("expression", head),
            *(() if first is None else (_predicted_total(fitted, first),)),
            Total("error", fitted.error_inside, SHARE, note="mean, on the runs that were fitted"),
            Total("held out", fitted.error_held_out, SHARE, note="runs with the largest values, fitted without them"),
            Total("constant", fitted.error_constant, SHARE, note="error of one time for all runs"),
            Total("near runs", float(fitted.corrections(here)[0] - 1), SHARE, note="is added to the expression there"),
        ),
        tables=tuple(tables),
        warnings=(*fitted.warnings, *_outside(predicted)),
        charts=_charts(fitted, base, shares),
        notes=_NOTES,
    )


def write_picture(fitted: FittedExpression, asked: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the first plot of the page as PNG; ``CdmppError`` where that cannot be, or without matplotlib."""
    from cdmpp.report.picture import write_points

    base, name = dict(asked[0]) if asked else typical_point(fitted), drawn_columns(fitted)[0]
    series = along(fitted, base, name)
    write_points(path, along_title(fitted, base), series, name, f"{fitted.expression.time_name} (s)", JOINED)


def typical_point(fitted: FittedExpression) -> dict[str, Any]:
    """Return the run with the longest time among those with the most members: where users look first."""
    table = fitted.table
    scaling = [table.factors[name] for name in table.factors if name in fitted.scaling]
    place = int(np.lexsort((table.times_s, *scaling[::-1]))[-1])
    labels = dict(zip(table.group_names, table.labels[place].split("/"), strict=False))
    return {name: _plain(values[place]) for name, values in table.factors.items()} | labels


def _predictions(fitted: FittedExpression, asked: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if not asked:
        return []
    found = fitted.predict(asked)
    read = fitted.points(asked)
    parts, corrections = fitted.parts(read), fitted.corrections(read)
    return [
        {
            **point,
            "time_s": float(found.times_s[place]),
            "low_s": float(found.low_s[place]),
            "high_s": float(found.high_s[place]),
            "outside": list(found.outside[place]),
            "correction": float(corrections[place] - 1),
            "largest_term": term_text(fitted.expression, fitted.expression.terms[int(parts[place].argmax())]),
        }
        for place, point in enumerate(asked)
    ]


def _predicted_total(fitted: FittedExpression, row: Row) -> Total:
    where = ", ".join(f"{name}={_value(row[name])}" for name in (*fitted.table.factors, *fitted.table.group_names))
    return Total("predicted", row["time_s"], "s", 4, interval=(_LEVEL, row["low_s"], row["high_s"]), note=where)


def _outside(predicted: Sequence[Row]) -> tuple[str, ...]:
    names = dict.fromkeys(name for row in predicted for name in row["outside"])
    if not names:
        return ()
    return (f"predicted beyond the measured range of {', '.join(names)}: the interval is wider there",)


def _columns_of(fitted: FittedExpression) -> tuple[Column, ...]:
    table = fitted.table
    return (
        *(Column(name, name, kind="text") for name in table.group_names),
        *(Column(name, name) for name in table.factors),
    )


def _prediction_table(fitted: FittedExpression, predicted: Sequence[Row]) -> Table:
    columns = (
        *_columns_of(fitted),
        Column("time_s", "predicted", "s", digits=4),
        Column("low_s", "80 % low", "s"),
        Column("high_s", "80 % high", "s"),
        Column("outside", "beyond the range", kind="text", is_optional=True),
        Column("correction", "near runs", SHARE, meaning=_NOTES["near runs"], rank=2),
        Column("largest_term", "largest term", kind="text", rank=1),
    )
    return Table("Predictions", columns, predicted)


def _suggestion_table(fitted: FittedExpression, suggested: Sequence[SuggestedRun]) -> Table:
    columns = (
        *_columns_of(fitted),
        Column("time_s", "predicted", "s"),
        Column("width_before", "interval before", SHARE, meaning="Mean width of the intervals, as a part of the time."),
        Column("width_after", "with this run", SHARE, meaning="The same as it is expected once the run is made."),
    )
    return Table("Runs to make next", columns, _suggested_rows(suggested), caption="Each with those above it made")


def _suggested_rows(suggested: Sequence[SuggestedRun]) -> list[dict[str, Any]]:
    return [
        {**one.point, "time_s": one.time_s, "width_before": one.width_before, "width_after": one.width_after}
        for one in suggested
    ]


def _terms(fitted: FittedExpression, shares: np.ndarray) -> Table:
    columns = (
        Column("term", "term", kind="text"),
        Column("share", "share", SHARE, meaning="Part of the time at the point that is looked at."),
        Column("exponents", "exponents", kind="text", meaning="With their 80 % intervals, by fits to resampled runs."),
    )
    rows = [
        {
            "term": term_text(fitted.expression, term),
            "share": float(shares[place]),
            "exponents": _exponents(fitted, place),
        }
        for place, term in enumerate(fitted.expression.terms)
    ]
    return Table("Terms", columns, [rows[place] for place in np.argsort(-shares, kind="stable")])


def _exponents(fitted: FittedExpression, term: int) -> str:
    return ", ".join(
        f"{one.factor} {one.value:.2f}"
        + (" fixed" if one.low == one.high else f" ({min(one.low, one.value):.2f} to {max(one.high, one.value):.2f})")
        for one in fitted.exponents
        if one.term == term
    )


def _crossing_table(fitted: FittedExpression, crossings: Sequence[Takeover]) -> Table:
    columns = (
        Column("column", "along", kind="text"),
        Column("value", "from"),
        Column("before", "largest before", kind="text"),
        Column("after", "largest from there", kind="text"),
        Column("is_outside", "beyond the range", kind="text"),
    )
    return Table("Where another term becomes the largest", columns, [_crossing(fitted, one) for one in crossings])


def _crossing(fitted: FittedExpression, one: Takeover) -> dict[str, Any]:
    terms = fitted.expression.terms
    return {
        **asdict(one),
        "before": term_text(fitted.expression, terms[one.before]),
        "after": term_text(fitted.expression, terms[one.after]),
    }


def _constants(fitted: FittedExpression) -> Table:
    expression = fitted.expression
    names = [f"a{place}" for place in range(1, len(expression.terms) + 1)]
    columns = (Column("group", "group", kind="text"), *(Column(f"{name}_s", name, "s") for name in names))
    rows = [
        {"group": group, **{f"{name}_s": value for name, value in zip(names, own, strict=True)}}
        for group, own in zip(expression.groups, expression.constants, strict=True)
    ]
    return Table("Constants", columns, rows)


def _runs(fitted: FittedExpression) -> Table:
    columns = (
        *_columns_of(fitted),
        Column("measured_s", "measured", "s", digits=4),
        Column("fitted_s", "fitted", "s", digits=4),
        Column("error", "error", SHARE),
    )
    return Table("Runs", columns, _run_rows(fitted))


def _run_rows(fitted: FittedExpression) -> list[dict[str, Any]]:
    table = fitted.table
    fitted_s = fitted.expression.times_s(table.factors, table.codes)
    labels = [dict(zip(table.group_names, label.split("/"), strict=False)) for label in table.labels]
    return [
        {
            **labels[row],
            **{name: _plain(values[row]) for name, values in table.factors.items()},
            "measured_s": float(table.times_s[row]),
            "fitted_s": float(fitted_s[row]),
            "error": float(fitted_s[row] / table.times_s[row] - 1),
        }
        for row in range(len(table))
    ]


def _charts(fitted: FittedExpression, base: Mapping[str, Any], shares: np.ndarray) -> tuple[Chart, ...]:
    terms = fitted.expression.terms
    bars = tuple(
        Bar(term_text(fitted.expression, term), float(share)) for term, share in zip(terms, shares, strict=True)
    )
    where = ", ".join(f"{name}={_value(value)}" for name, value in base.items())
    charts: list[Chart] = [_line(fitted, base, name) for name in drawn_columns(fitted)]
    rows = _run_rows(fitted)
    rows = rows[:: -(-len(rows) // _MOST_MARKS)]
    marks = [
        Point(row["measured_s"], row["fitted_s"], ", ".join(f"{k}={_value(v)}" for k, v in row.items())) for row in rows
    ]
    ends = [min(row["measured_s"] for row in rows), max(row["measured_s"] for row in rows)]
    same = [Point(end, end, "measured = fitted") for end in ends]
    picture = points(
        "Fitted against measured", {"runs": marks, "equal": same}, ("measured", "s"), ("fitted", "s"), JOINED
    )
    charts.append(Plot("Fitted against measured", picture, "Each mark is a run."))
    charts.append(Bars("Share of each term", bars, SHARE, f"At {where}."))
    return tuple(charts)


def drawn_columns(fitted: FittedExpression) -> list[str]:
    """Return the columns that plots go along: what a run is run on, else the first; two at most."""
    ranges = fitted.ranges
    names = [name for name in fitted.table.factors if ranges[name][0] < ranges[name][1]]
    return ([name for name in names if name in fitted.scaling] or names)[:2]


def _line(fitted: FittedExpression, base: Mapping[str, Any], name: str) -> Plot:
    title = f"{fitted.expression.time_name} along {name}"
    picture = points(title, along(fitted, base, name), (name, ""), (fitted.expression.time_name, "s"), JOINED)
    return Plot(title, picture, along_title(fitted, base))


def along_title(fitted: FittedExpression, base: Mapping[str, Any]) -> str:
    """Say what stays the same along a column of what runs are run on."""
    fixed = ", ".join(f"{one}={_value(value)}" for one, value in base.items() if one not in fitted.scaling)
    return f"At {fixed}." if fixed else ""


def along(fitted: FittedExpression, base: Mapping[str, Any], name: str) -> dict[str, list[Point]]:
    """Return series along one column: measured runs, the fit of the same runs, and how it goes on beyond them.

    Runs agree with ``base`` in as many of the columns that say no number of members as any do. Beyond the largest of
    them GPUs, nodes and data-parallel replicas grow together.
    """
    table = fitted.table
    near = np.array(table.labels) == label_of([base[one] for one in table.group_names])
    for other, values in table.factors.items():
        if other != name and other not in fitted.scaling and (kept := near & (values == base[other])).any():
            near = kept
    runs, x = table.rows(near), table.factors[name][near]
    codes = np.full(len(runs), table.groups.index(runs.labels[0]), dtype=np.intp)
    fitted_s = fitted.times_s(Points(runs.factors, codes))
    last = int(np.lexsort((runs.times_s, x))[-1])
    start = {one: float(values[last]) for one, values in runs.factors.items()}
    grown = {name} | (_TOGETHER & {role_of(name).name} and {one for one in start if role_of(one).name in _TOGETHER})
    steps = np.geomspace(1.0, max(_BEYOND, float(base[name]) / start[name]), _LINE)
    line = Points(
        {one: value * steps if one in grown else np.full(_LINE, value) for one, value in start.items()},
        np.full(_LINE, codes[0], dtype=np.intp),
    )
    found = fitted.predict_points(line)
    beyond = {
        "extrapolated": found.times_s, "80 % low": found.low_s, "80 % high": found.high_s,
    }  # fmt: skip
    return {
        "measured": [_mark(name, *one) for one in zip(x, runs.times_s, strict=True)],
        "fitted": [_mark(name, *one) for one in zip(x, fitted_s, strict=True)],
        **{
            label: [_mark(name, *one) for one in zip(line.columns[name], seconds, strict=True)]
            for label, seconds in beyond.items()
        },
    }


def _mark(name: str, x: float, seconds: float) -> Point:
    return Point(float(x), float(seconds), f"{name}={x:.3g}: {quantity(float(seconds), 's')}")


def _plain(value: float) -> float:
    """A number as JSON takes it, whole ones without a point."""
    return int(value) if float(value).is_integer() else float(value)


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


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
        "suggestions": _suggested_rows(suggested),
        "point": dict(base),
        "shares": [float(share) for share in shares],
        "takeovers": [_crossing(fitted, one) for one in crossings],
        "runs": _run_rows(fitted),
    }
