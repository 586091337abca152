"""Suggestion: which runs to make next, by how much shorter they are expected to make the intervals of some points.

The ensemble of a fit is taken as a sample of what the times may be: a new run tells about a point as far as the two
vary together (Gaussian conditioning), and it widens the measured range.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdmpp.expression.columns import role_of
from cdmpp.expression.fitted_expression import FittedExpression
from cdmpp.expression.points import Points
from cdmpp.expression.run_table import RunTable
from cdmpp.expression.spread import SIGMAS, beyond_range

Floats = npt.NDArray[np.float64]
_MOST = 600
"""Runs that are weighed."""
_CORNERS = 64
_REACH = 2.0
"""A run may have this many times as many members as the largest one."""


@dataclass(frozen=True)
class SuggestedRun:
    """A run to make next."""

    point: Mapping[str, Any]
    """Column -> value, groups among them."""
    time_s: float
    """Predicted seconds of it."""
    width_before: float
    """Mean width of the intervals of the points, as a part of their times, before this run."""
    width_after: float
    """The same with it, as expected."""


def suggest(
    fitted: FittedExpression, count: int, targets: Sequence[Mapping[str, Any]] | None = None
) -> tuple[SuggestedRun, ...]:
    """Choose runs to make next, one after the other, each with those before it made.

    Args:
        fitted: the fit.
        count: how many.
        targets: points whose intervals are to become shorter; None: the corners of the measured range and its double.
    """
    asked = fitted.points(targets if targets is not None else corners(fitted))
    tried = fitted.points(_runs(fitted.table))
    ranges = dict(fitted.ranges)
    both = Points(
        {name: np.concatenate([asked.columns[name], tried.columns[name]]) for name in asked.columns},
        np.concatenate([asked.codes, tried.codes]),
    )
    away = fitted.disagreements(both)
    members = len(away)
    covariance = fitted.spread.scale**2 * (away.T @ away) / members
    noise, far = fitted.spread.noise**2, fitted.spread.by_doubling
    near = (fitted.spread.near * fitted.kriging.at(asked.columns, asked.codes)[1]) ** 2
    found = list[SuggestedRun]()
    n = len(asked.codes)
    times_s = fitted.times_s(tried)
    taken = np.zeros(len(tried.codes), dtype=bool)

    def width(variances: Floats, beyond: Floats) -> Floats:
        sigma = np.sqrt(near + np.maximum(variances, 0.0) + (far * beyond) ** 2)
        return (2 * np.sinh(SIGMAS * sigma)).mean(axis=-1)

    before = float(width(np.diag(covariance)[:n], beyond_range(ranges, asked.columns)[0]))
    for _ in range(min(count, len(tried.codes))):
        shared, own = covariance[:n, n:], np.diag(covariance)[n:]
        left = np.diag(covariance)[:n, None] - shared**2 / (own + noise)
        beyond = np.stack([
            beyond_range(_with(ranges, tried.columns, place), asked.columns)[0] for place in range(len(own))
        ])  # fmt: skip
        widths = np.where(taken, np.inf, width(left.T, beyond))
        best = int(np.argmin(widths))
        taken[best] = True
        found.append(SuggestedRun(fitted.named(tried, best), float(times_s[best]), before, float(widths[best])))
        before = float(widths[best])
        line = covariance[:, n + best]
        covariance = covariance - np.outer(line, line) / (covariance[n + best, n + best] + noise)
        ranges = _with(ranges, tried.columns, best)
    return tuple(found)


def corners(fitted: FittedExpression) -> list[dict[str, Any]]:
    """Return the corners of the measured range, columns of members twice as large as the largest, for each group."""
    ends = {
        name: (low, _REACH * high if name in fitted.scaling else high) for name, (low, high) in fitted.ranges.items()
    }
    points = [
        dict(zip(ends, one, strict=True)) for one in itertools.islice(itertools.product(*ends.values()), _CORNERS)
    ]
    labels = [dict(zip(fitted.table.group_names, label.split("/"), strict=False)) for label in fitted.table.groups]
    found = [point | label for label in labels for point in points if is_possible(fitted.table, point)]
    return found or [point | label for label in labels for point in points]


def is_possible(table: RunTable, point: Mapping[str, Any], exact: bool = True) -> bool:
    """Return False if a point has more nodes than GPUs, or breaks a product of powers that all runs keep.

    Args:
        table: the runs.
        point: values of all columns.
        exact: whether products are looked at.
    """
    names = {role_of(name).name: name for name in table.factors}
    if "gpus" in names and "nodes" in names and point[names["nodes"]] > point[names["gpus"]]:
        return False
    if not exact:
        return True
    logs = np.log(table.values)
    middle = logs.mean(axis=0)
    spans, sizes, ways = np.linalg.svd(logs - middle, full_matrices=True)
    fixed = ways[np.concatenate([sizes, np.zeros(len(ways) - len(sizes))]) <= 1e-6 * sizes[0]]
    return bool(np.all(np.abs(fixed @ (np.log([point[name] for name in table.factors]) - middle)) < 1e-6))


def _runs(table: RunTable) -> list[dict[str, Any]]:
    """Runs that could be made: those of the table with one or two columns changed to values that others have."""
    values = {name: np.unique(column).tolist() for name, column in table.factors.items()}
    for name, known in values.items():
        if role_of(name).is_count:
            known.append(_REACH * known[-1])
    keys = dict[tuple[Any, ...], dict[str, Any]]()
    rows = np.unique(np.column_stack([table.values, table.codes]), axis=0)
    for row in rows[:: max(1, len(rows) // 40)]:
        base = dict(zip(table.factors, row.tolist(), strict=False))
        label = table.groups[int(row[-1])]
        group = dict(zip(table.group_names, label.split("/"), strict=False))
        for changed in itertools.chain([()], *(itertools.combinations(values, n) for n in (1, 2))):
            for chosen in itertools.product(*(values[name] for name in changed)):
                point = base | dict(zip(changed, chosen, strict=True))
                if is_possible(table, point):
                    keys[(*point.values(), label)] = point | group
    found = list(keys.values())
    return found[:: max(1, -(-len(found) // _MOST))]


def _with(
    ranges: Mapping[str, tuple[float, float]], columns: Mapping[str, Floats], place: int
) -> dict[str, tuple[float, float]]:
    """Ranges that a run is part of."""
    return {
        name: (min(low, float(columns[name][place])), max(high, float(columns[name][place])))
        for name, (low, high) in ranges.items()
    }
