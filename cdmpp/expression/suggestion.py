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
from cdmpp.expression.factor import factors_of
from cdmpp.expression.fitted_expression import FittedExpression
from cdmpp.expression.group_label import values_of
from cdmpp.expression.points import Points
from cdmpp.expression.run_table import RunTable
from cdmpp.expression.spread import SIGMAS, Ranges, ranges_of, steps_beyond

Floats = npt.NDArray[np.float64]
_MOST = 600
"""Runs that are weighed."""
_CORNERS = 64
_REACH = 2.0
"""A run may have this many times as many members as the largest one."""
_OFTEN = 3
"""A run that was made this often is not made again."""
_LEAST_GAIN = 0.02
"""A run makes the intervals shorter by this part at least."""


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

    They are fewer than ``count`` where no further run is expected to make the intervals shorter.

    Args:
        fitted: the fit.
        count: how many.
        targets: points whose intervals are to become shorter; None: the corners of the measured range and its double.
    """
    asked = fitted.points(targets if targets is not None else corners(fitted))
    runs = _runs(fitted.table, _Reach.of(fitted.table))
    if not runs:
        return ()
    tried = fitted.points(runs)
    ranges: Ranges = ranges_of(fitted.table.factors)
    both = Points(
        {name: np.concatenate([asked.columns[name], tried.columns[name]]) for name in asked.columns},
        np.concatenate([asked.codes, tried.codes]),
    )
    away = fitted.disagreements(both)
    members = len(away)
    covariance = away.T @ away / members
    noise = fitted.spread.noise**2
    near = (fitted.spread.near * fitted.kriging.at(asked.columns, asked.codes)[1]) ** 2
    found = list[SuggestedRun]()
    n = len(asked.codes)
    times_s = fitted.times_s(tried)
    taken = np.zeros(len(tried.codes), dtype=bool)

    def widening(ranges: Ranges) -> Floats:
        return fitted.spread.widening(steps_beyond(ranges, asked.columns))

    def width(variances: Floats, widening: Floats) -> Floats:
        return (2 * np.sinh(SIGMAS * np.sqrt(near + variances) * widening)).mean(axis=-1)

    before = float(width(np.diag(covariance)[:n], widening(ranges)))
    for _ in range(min(count, len(tried.codes))):
        shared, own = covariance[:n, n:], np.diag(covariance)[n:]
        left = np.diag(covariance)[:n, None] - shared**2 / (own + noise)
        wider = np.stack([widening(_with(ranges, tried.columns, place)) for place in range(len(own))])
        widths = np.where(taken, np.inf, width(left.T, wider))
        best = int(np.argmin(widths))
        if widths[best] > (1 - _LEAST_GAIN) * before:
            break
        taken[best] = True
        found.append(SuggestedRun(fitted.named(tried, best), float(times_s[best]), before, float(widths[best])))
        before = float(widths[best])
        line = covariance[:, n + best]
        covariance = covariance - np.outer(line, line) / (covariance[n + best, n + best] + noise)
        ranges = _with(ranges, tried.columns, best)
    return tuple(found)


def corners(fitted: FittedExpression) -> list[dict[str, Any]]:
    """Return the corners of the measured range, columns of members twice as large as the largest, for each group.

    Where none of them can be, the runs at the ends of the columns stand for them.
    """
    table, reach = fitted.table, _Reach.of(fitted.table)
    ends = {
        name: (low, _REACH * high if name in fitted.scaling else high) for name, (low, high) in fitted.ranges.items()
    }
    points = [dict(zip(ends, one, strict=True)) for one in itertools.product(*ends.values())]
    possible = list(itertools.islice((point for point in points if reach.has(point)), _CORNERS))
    if not possible:
        places = {int(find(values)) for values in table.factors.values() for find in (np.argmin, np.argmax)}
        possible = [{name: float(values[place]) for name, values in table.factors.items()} for place in sorted(places)]
    return [point | values_of(label, table.group_names) for label in table.groups for point in possible]


@dataclass(frozen=True)
class _Reach:
    """These runs could be made with the machines and the design of the runs of a table."""

    table: RunTable
    fixed: Floats
    """Products of powers that all runs keep, shape ``(products, columns)``."""
    middle: Floats
    """Logarithms of the middle of the runs, shape ``(columns,)``."""
    most_per_node: float
    """GPUs that a node has, as far as it is known."""
    most_members: float
    """Members of a run, over the three kinds of parallelism."""

    @classmethod
    def of(cls, table: RunTable) -> _Reach:
        logs = np.log(table.values)
        middle = logs.mean(axis=0)
        _, sizes, ways = np.linalg.svd(logs - middle, full_matrices=True)
        fixed = ways[np.concatenate([sizes, np.zeros(len(ways) - len(sizes))]) <= 1e-6 * sizes[0]]
        found = cls(table, fixed, middle, np.inf, np.inf)
        per_node, members = found._per_node(table.factors).max(), _REACH * found._members(table.factors).max()
        return cls(table, fixed, middle, float(per_node), float(members))

    def has(self, point: Mapping[str, Any]) -> bool:
        """Tell if a run can be made at a point: its counts fit together, to the nodes and to products that are kept."""
        columns = {name: np.array([float(point[name])]) for name in self.table.factors}
        if self.table.rules.broken_by(columns):
            return False
        if self._per_node(columns)[0] > self.most_per_node or self._members(columns)[0] > self.most_members:
            return False
        logs = np.log(np.concatenate(list(columns.values())))
        return bool(np.all(np.abs(self.fixed @ (logs - self.middle)) < 1e-6))

    def _per_node(self, columns: Mapping[str, Floats]) -> Floats:
        found = [one.values(columns) for one in factors_of(tuple(columns)) if one.role.name == "gpus_per_node"]
        return found[0] if found else np.ones(1)

    def _members(self, columns: Mapping[str, Floats]) -> Floats:
        found = [values for name, values in columns.items() if role_of(name).name in ("tp", "dp", "pp")]
        return np.prod(found, axis=0) if found else np.ones(1)


def _runs(table: RunTable, reach: _Reach) -> list[dict[str, Any]]:
    """Runs that could be made: those of the table with one or two columns changed to values that others have.

    A run that was made often enough is none of them: once more it would say little.
    """
    values = {name: np.unique(column).tolist() for name, column in table.factors.items()}
    for name, known in values.items():
        if role_of(name).is_count:
            known.append(_REACH * known[-1])
    keys = dict[tuple[Any, ...], dict[str, Any]]()
    rows, counts = np.unique(np.column_stack([table.values, table.codes]), axis=0, return_counts=True)
    often = {tuple(row) for row in rows[counts >= _OFTEN].tolist()}
    for row in rows[:: max(1, len(rows) // 40)]:
        base = dict(zip(table.factors, row.tolist(), strict=False))
        label = table.groups[int(row[-1])]
        group = values_of(label, table.group_names)
        for changed in itertools.chain([()], *(itertools.combinations(values, n) for n in (1, 2))):
            for chosen in itertools.product(*(values[name] for name in changed)):
                point = base | dict(zip(changed, chosen, strict=True))
                if (
                    (*point.values(), row[-1]) not in often
                    and (*point.values(), label) not in keys
                    and reach.has(point)
                ):
                    keys[(*point.values(), label)] = point | group
    found = list(keys.values())
    return found[:: max(1, -(-len(found) // _MOST))]


def _with(ranges: Ranges, columns: Mapping[str, Floats], place: int) -> Ranges:
    """Ranges that a run is part of."""
    run = ranges_of({name: values[place : place + 1] for name, values in columns.items()})
    return {name: (min(low, run[name][0]), max(high, run[name][1])) for name, (low, high) in ranges.items()}
