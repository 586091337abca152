"""Blend: all known terms at once, with constants that a prior keeps small where terms grow.

Non-negative least squares of relative errors. The prior is on the share that a term would have of the time far outside
of the range, at twice as many members of every group: of two terms that explain the runs alike, the one that grows less
is preferred. Constants of groups are drawn to those of all groups together, each relative to its own times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cdmpp.expression.constants import nonnegative
from cdmpp.expression.design import Design
from cdmpp.expression.expression import Expression
from cdmpp.expression.folds import Fold
from cdmpp.expression.held_out import plain_error
from cdmpp.expression.known_terms import KnownTerm, known_terms
from cdmpp.expression.term import Term, shape_values

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
_STRENGTH = 1e-3
"""The strength of the prior; on held-out rows of public tables any from 1e-5 to 1e-2 does alike."""
_COMPUTED = 1e-2
"""Strength of the prior on what a worker computes by itself, as a part of that on what is exchanged."""
_FAR = 2.0
"""A share counts as far outside of the range as this many times the largest group."""
_LEAST_SHARE = 1e-3
"""Terms that are nowhere this part of the time are left out."""
_SMALL_SHARE = 0.02
"""Terms that are nowhere this part of the time may go, where the error on held-out rows does not grow."""


@dataclass(frozen=True)
class Blend:
    """A blend knows the terms of a table and how strongly a prior holds their constants."""

    design: Design
    terms: tuple[KnownTerm, ...]
    strength: float

    @classmethod
    def of(cls, design: Design, strength: float = _STRENGTH) -> Blend:
        """Take the known terms that vary in the table, or are constant."""
        known = known_terms(design.factors)
        factors = _factors(design)
        return cls(
            design, tuple(one for one in known if one.product.values(factors, len(design.table)).any()), strength
        )

    @cached_property
    def columns(self) -> Floats:
        """Values of the terms in every row, shape ``(rows, terms)``."""
        return np.column_stack([one.product.values(self._factors, len(self.design.table)) for one in self.terms])

    @cached_property
    def _factors(self) -> dict[str, Floats]:
        return _factors(self.design)

    @cached_property
    def _powers(self) -> Floats:
        """Exponents of the factors, shape ``(terms, factors)``."""
        names = [factor.name for factor in self.design.factors]
        return np.array([[one.product.powers.get(name, 0.0) for name in names] for one in self.terms])

    def shorter(self, *folds: Sequence[Fold]) -> Blend:
        """Leave out small terms, the smallest first, without which rows that are held out are predicted as well.

        Args:
            folds: kinds of folds; the mean error of each kind must stay.
        """
        kept = self
        kinds = [one for one in folds if one]
        bounds = [plain_error(self.design, self, one) for one in kinds]
        shares = self._largest_shares()
        for place in np.argsort(shares, kind="stable"):
            rest = replace(kept, terms=tuple(one for one in kept.terms if one is not self.terms[place]))
            if shares[place] >= _SMALL_SHARE or not rest.terms:
                break
            errors = (plain_error(self.design, rest, one) for one in kinds)
            if not shares[place] or all(error <= bound for error, bound in zip(errors, bounds, strict=True)):
                kept = rest
        return kept

    def refit(self, rows: Rows) -> Expression:
        """Fit the constants to some rows of the table."""
        table = self.design.table
        constants, columns = self._constants(rows)
        return self._expression(constants, columns, table.times_s[rows], table.codes[rows])

    def refits(self, rows: Rows, draws: Sequence[Rows]) -> tuple[Expression, ...]:
        """Fit the constants to each draw of some rows."""
        return tuple(self.refit(one) for one in draws)

    def _largest_shares(self) -> Floats:
        """The largest part of the time that each term is in any run."""
        table = self.design.table
        constants, columns = self._constants(self.design.every)
        return (constants[table.codes] * columns / table.times_s[:, None]).max(axis=0)

    def _constants(self, rows: Rows) -> tuple[Floats, Floats]:
        """Constants, shape ``(groups, terms)``, fitted to some rows, and values of the terms there."""
        table = self.design.table
        times_s, codes = table.times_s[rows], table.codes[rows]
        columns = self.columns[rows]
        far = self._far(rows)
        far = np.where(far > 0, far, 1.0)
        typical = np.array([
            np.exp(np.log(times_s[codes == group]).mean()) if (codes == group).any() else 1.0
            for group in range(len(table.groups))
        ])  # fmt: skip
        shares = columns / far * (typical[codes] / times_s)[:, None]
        prior = np.where([one.is_exchange for one in self.terms], 1.0, _COMPUTED) * self.strength
        weights = self._weights(rows)
        middle = _ridge(shares, weights, prior, np.zeros(len(prior)))
        constants = []
        for group, scale in enumerate(typical):
            own = codes == group
            found = _ridge(shares[own], weights[own], prior, middle) if len(typical) > 1 else middle
            constants.append(found * scale / far)
        return np.array(constants), columns

    def _weights(self, rows: Rows) -> Floats:
        """Weight of each row: runs with many members count more, because predictions go on from them."""
        found = np.zeros(len(rows))
        counts = [one for one in self.design.factors if one.kind == "column" and one.role.is_count]
        for factor in counts:
            values = self._factors[factor.name][rows]
            found += values / values.max() / len(counts)
        return found / found.mean() if counts else found + 1.0

    def _far(self, rows: Rows) -> Floats:
        """Value of each term at a point far outside of the range of some rows."""
        point = {}
        for factor in self.design.factors:
            values = self._factors[factor.name][rows]
            point[factor.name] = _FAR * values.max() if factor.role.is_count else np.exp(np.log(values).mean())
        shapes = {
            key: shape_values(key[0], np.array([point[key[1]]]))[0]
            for one in self.terms
            if (key := one.product.shape) is not None
        }
        logs = np.log([point[factor.name] for factor in self.design.factors])
        own = np.array([1.0 if one.product.shape is None else shapes[one.product.shape] for one in self.terms])
        return np.exp(self._powers @ logs) * own

    def _expression(self, constants: Floats, columns: Floats, times_s: Floats, codes: Rows) -> Expression:
        largest = (constants[codes] * columns / times_s[:, None]).max(axis=0)
        kept = np.flatnonzero(largest > _LEAST_SHARE)
        return Expression(
            self.design.table.names,
            tuple(Term(self.terms[place].product) for place in kept),
            tuple(tuple(float(one) for one in own[kept]) for own in constants),
            self.design.table.groups,
            self.design.table.time_name,
        )


def _ridge(shares: Floats, weights: Floats, prior: Floats, middle: Floats) -> Floats:
    """Non-negative shares of terms whose sum is the time, drawn to ``middle``."""
    held = np.diag(max(len(shares), 1) * prior)
    weighted = shares * weights[:, None]
    return nonnegative(weighted.T @ shares + held, weighted.sum(axis=0) + held @ middle)


def _factors(design: Design) -> dict[str, Floats]:
    return {factor.name: factor.values(design.table.factors) for factor in design.factors}
