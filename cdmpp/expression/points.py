"""Points: configurations of runs that are asked for, checked against the columns and groups of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdmpp.errors import UsageError, some
from cdmpp.expression.run_table import LARGEST, SMALLEST, RunTable, label_of, number_of
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
            for each point.

    Raises:
        UsageError: a column that is missing, unknown or not positive, or a group that no run belongs to.
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
    if unknown := [name for name in lists if name not in needed]:
        raise UsageError(f"the point has {shown(unknown[0])}, which the fit does not have: {known}")
    if len({len(values) for values in lists.values()}) > 1:
        raise UsageError("the columns of the points have different lengths: give each column a value for each point")
    columns = {name: _positive(name, lists.get(name, [])) for name in table.factors}
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
