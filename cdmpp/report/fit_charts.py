"""Charts of a fitted expression: times along the columns that runs scale with, measured, fitted and beyond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.expression.columns import role_of
from cdmpp.expression.fitted_expression import FittedExpression
from cdmpp.expression.group_label import label_of
from cdmpp.expression.points import Points
from cdmpp.report.charts import Bar, Bars, Chart, Plot, Point, points
from cdmpp.report.fit_rows import point_text, run_rows, term_rows, typical_point, value_text
from cdmpp.units import SHARE, quantity

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


def fit_charts(fitted: FittedExpression, base: Mapping[str, Any]) -> tuple[Chart, ...]:
    """Draw times along columns, fitted against measured times, and the share of each term at a point."""
    bars = tuple(Bar(row["term"], row["share"]) for row in term_rows(fitted, base))
    charts: list[Chart] = [_line(fitted, base, name) for name in drawn_columns(fitted)]
    rows = run_rows(fitted)
    rows = rows[:: -(-len(rows) // _MOST_MARKS)]
    marks = [
        Point(row["measured_s"], row["fitted_s"], ", ".join(f"{k}={value_text(v)}" for k, v in row.items()))
        for row in rows
    ]
    ends = [min(row["measured_s"] for row in rows), max(row["measured_s"] for row in rows)]
    same = [Point(end, end, "measured = fitted") for end in ends]
    picture = points(
        "Fitted against measured", {"runs": marks, "equal": same}, ("measured", "s"), ("fitted", "s"), JOINED
    )
    charts.append(Plot("Fitted against measured", picture, "Each mark is a run."))
    charts.append(Bars("Share of each term", bars, SHARE, f"At {point_text(base)}."))
    return tuple(charts)


def write_picture(fitted: FittedExpression, asked: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the first plot of the page as PNG; ``CdmppError`` where that cannot be, or without matplotlib."""
    from cdmpp.report.picture import write_points

    base, name = dict(asked[0]) if asked else typical_point(fitted), drawn_columns(fitted)[0]
    series = along(fitted, base, name)
    write_points(path, along_title(fitted, base), series, name, f"{fitted.expression.time_name} (s)", JOINED)


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
    fixed = ", ".join(f"{one}={value_text(value)}" for one, value in base.items() if one not in fitted.scaling)
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
