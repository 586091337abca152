"""Design: the numbers of a table in the form in which expressions are fitted: logarithms, shapes, weights, groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cdmpp.expression.constants import nonnegative
from cdmpp.expression.factor import Factor, factors_of
from cdmpp.expression.run_table import RunTable
from cdmpp.expression.term import SHAPES, shape_values

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Design:
    """A design knows the factors of a table and their values in every row, rows of a group next to each other."""

    table: RunTable
    """Sorted by group."""
    factors: tuple[Factor, ...]
    middles: Floats
    """Geometric mean of each factor: in fits all factors are relative to it."""

    @classmethod
    def of(cls, table: RunTable) -> Design:
        """Make the design of a table."""
        table = table.rows(np.argsort(table.codes, kind="stable"))
        factors = factors_of(table.names)
        middles = np.array([np.exp(np.log(one.values(table.factors)).mean()) for one in factors])
        return cls(table, factors, middles)

    @cached_property
    def logs(self) -> Floats:
        """Logarithms of the factors over their middles, shape ``(rows, factors)``."""
        values = np.column_stack([one.values(self.table.factors) for one in self.factors])
        return np.log(values / self.middles)

    @cached_property
    def shape_keys(self) -> tuple[tuple[str, int] | None, ...]:
        """List what a product may be multiplied by: nothing, or a shape and the place of a factor."""
        keys: list[tuple[str, int] | None] = [None]
        for place, factor in enumerate(self.factors):
            values = factor.values(self.table.factors)
            if not factor.role.is_count or values.min() < 1:
                continue
            keys += [(shape, place) for shape in SHAPES if np.ptp(shape_values(shape, values)) > 0]
        return tuple(keys)

    @cached_property
    def shapes(self) -> Floats:
        """Values of the shapes, shape ``(rows, shapes)``."""
        rows = len(self.table)
        columns = [
            np.ones(rows) if key is None else shape_values(key[0], self.factors[key[1]].values(self.table.factors))
            for key in self.shape_keys
        ]
        return np.column_stack(columns)

    @cached_property
    def every(self) -> Rows:
        """All rows."""
        return np.arange(len(self.table))

    def constants(self, columns: Floats, rows: Rows) -> Floats:
        """Fit the constants of each group to some rows.

        Args:
            columns: values of the terms over the measured time, shape ``(batch, all rows, terms)``.
            rows: sorted places of the rows.

        Returns:
            Non-negative constants, shape ``(batch, groups, terms)``.
        """
        codes = self.table.codes[rows]
        groups, k = len(self.table.groups), columns.shape[2]
        gram, moment = np.zeros((len(columns), groups, k, k)), np.zeros((len(columns), groups, k))
        bounds = np.searchsorted(codes, np.arange(groups + 1))
        for group, (first, last) in enumerate(zip(bounds, bounds[1:], strict=False)):
            if first < last:
                own = columns[:, rows[first:last], :]
                gram[:, group] = own.transpose(0, 2, 1) @ own
                moment[:, group] = own.sum(axis=1)
        return nonnegative(gram, moment)

    def relative(self, columns: Floats, constants: Floats, rows: Rows) -> Floats:
        """Predicted over measured time of some rows, shape ``(batch, rows)``."""
        own = constants[:, self.table.codes[rows], :]
        return np.einsum("brk,brk->br", columns[:, rows, :], own)
