"""Points: configurations of runs that are asked for, checked against the columns and groups of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdmpp.errors import UsageError, some
from cdmpp.expression.cells import LARGEST, SMALLEST, number_of
from cdmpp.expression.group_label import label_of
from cdmpp.expression.run_table import RunTable
from cdmpp.platform.limits import shown

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Points:
    """Configurations of runs."""

    columns: Mapping[str, Floats]
    """Column -> its values, shape ``(points,)``."""
    codes: Codes
    """Place of the group of each point."""

    def __len__(self) -> int:
        return len(self.codes)


def read_points(table: RunTable, given: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Points:
    """Read points of the kind of the runs of a table.

    Args:
        table: the runs.
        given: values of all columns, and of the group columns where there are groups: lists by column, or one mapping
            for each point. A column that never varies in the runs may be there, too, with that value.

    Raises:
        UsageError: a column that is missing, unknown or not positive, or a group that no run belongs to; another value
            of a column that never varies; counts that are not whole or contradict each other.
    """
    needed = [*table.factors, *table.group_names]
    known = f"give {some(needed, ', ')}"
    if isinstance(given, Mapping):
        lists = {name: np.atleast_1d(values).tolist() for name, values in given.items()}
        sets = [set(lists)]
    else:
        sets = [set(point) for point in given]
        lists = {name: [point.get(name) for point in given] for name in dict.fromkeys(k for one in given for k in one)}
    for names in sets:
        if missing := [name for name in needed if name not in names]:
            raise UsageError(f"the point has no {missing[0]}: {known}")
    if unknown := [name for name in lists if name not in needed and name not in table.fixed]:
        raise UsageError(f"the point has {shown(unknown[0])}, which the fit does not have: {known}")
    if len({len(values) for values in lists.values()}) > 1:
        raise UsageError("the columns of the points have different lengths: give each column a value for each point")
    for name, value in table.fixed.items():
        asked = _positive(name, [one for one in lists.get(name, []) if one is not None])
        if (others := asked[asked != value]).size:
            raise UsageError(
                f"{name} of the point is {others[0]:g}, and {value:g} in all runs: nothing is known of other values, "
                "make runs with them"
            )
    columns = {name: _positive(name, lists.get(name, [])) for name in table.factors}
    if broken := table.rules.broken_by(columns):
        raise UsageError(f"the point cannot be: {broken[1]}")
    count = len(next(iter(columns.values())))
    keys = [lists[name] for name in table.group_names] if count else []
    labels = [label_of(key) for key in zip(*keys, strict=True)] if keys else [""] * count
    if strangers := [label for label in labels if label not in table.groups]:
        raise UsageError(
            f"no run is of the group {shown(strangers[0])}: expected one of {some(list(table.groups), ', ')}"
        )
    return Points(columns, np.array([table.groups.index(label) for label in labels], dtype=np.intp))


def _positive(name: str, values: Sequence[Any]) -> Floats:
    found = np.empty(len(values))
    for place, value in enumerate(values):
        try:
            found[place] = number_of(value)
        except (TypeError, ValueError):
            found[place] = np.nan
        if not 0 < found[place] < np.inf:
            raise UsageError(f"{name} of the point is {shown(value)}: expected a number above 0")
        if not SMALLEST <= found[place] <= LARGEST:
            raise UsageError(f"{name} of the point is {shown(value)}: expected {SMALLEST:g} to {LARGEST:g}")
    return found
