"""IntegerModel: variables and rows of an integer programme, and HiGHS, which solves it through SciPy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

Row = dict[int, float]
"""Number of a variable -> its factor."""
ONE = 0
"""The variable that is 1."""
_LEAST_GAP = 1e-7
_INFEASIBLE = 2
"""Status of SciPy: there is no solution."""


@dataclass
class IntegerModel:
    """The first variable is ``ONE``, so that rows need no constants. The second is made as small as can be."""

    integer: list[int] = field(default_factory=lambda: [0])
    low: list[float] = field(default_factory=lambda: [1.0])
    high: list[float] = field(default_factory=lambda: [1.0])
    rows: list[Row] = field(default_factory=list)
    """Each is at most 0."""

    def variable(self, high: float = 1.0, integer: bool = False) -> int:
        """Add a variable from 0 to ``high``, and return its number."""
        self.integer.append(int(integer))
        self.low.append(0.0)
        self.high.append(high)
        return len(self.high) - 1

    def at_most(self, row: Mapping[int, float], bound: Mapping[int, float]) -> None:
        """Demand that one row is at most another."""
        self.rows.append(added(row, times(bound, -1.0)))

    def smallest(self, goal: int, seconds: float) -> tuple[NDArray[np.float64] | None, float]:
        """Make a variable as small as can be, for so many seconds.

        Returns:
            The values of the best solution that was found, None where none was; and a bound for the variable, which is
            infinite where there is no solution.
        """
        cells = [(place, one, factor) for place, row in enumerate(self.rows) for one, factor in row.items() if factor]
        places, numbers, factors = (np.array(column) for column in zip(*cells, strict=True))
        matrix = csr_array((factors, (places, numbers)), shape=(len(self.rows), len(self.high)))
        cost = np.zeros(len(self.high))
        cost[goal] = 1.0
        found = milp(
            cost, integrality=np.array(self.integer), bounds=Bounds(np.array(self.low), np.array(self.high)),
            constraints=LinearConstraint(matrix, -np.inf, 0.0),
            options={"time_limit": max(seconds, 0.1), "mip_rel_gap": _LEAST_GAP},
        )  # fmt: skip
        if found.status == _INFEASIBLE:
            return None, math.inf
        bound = found.get("mip_dual_bound")
        return found.x, 0.0 if bound is None or not math.isfinite(bound) else float(bound)


def added(*rows: Mapping[int, float]) -> Row:
    """Add up rows."""
    found = Row()
    for row in rows:
        for one, factor in row.items():
            found[one] = found.get(one, 0.0) + factor
    return found


def times(row: Mapping[int, float], factor: float) -> Row:
    """Multiply a row by a number."""
    return {one: factor * value for one, value in row.items()} if factor else {}
