"""Searched: a form that a search found, to be fitted again to any rows, with intervals of its exponents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdmpp.expression.design import Design
from cdmpp.expression.distinct import distinct
from cdmpp.expression.exponents import ExponentFit, polish
from cdmpp.expression.expression import Expression
from cdmpp.expression.fitted_expression import ExponentInterval
from cdmpp.expression.folds import resamples
from cdmpp.expression.form import Atom
from cdmpp.expression.held_out import Refittable
from cdmpp.expression.term import Product, Term

Rows = npt.NDArray[np.intp]
_STEPS, _RESAMPLED_STEPS = 6, 3
"""Steps of a fit that begins at the exponents of all rows: to other rows, and to resampled ones."""


@dataclass(frozen=True)
class Searched:
    """A form with its exponents."""

    design: Design
    fit: ExponentFit
    strength: float
    """Strength of the regularisation."""

    def refit(self, rows: Rows) -> Expression:
        """Fit exponents and constants to some rows of the table."""
        return expression_of(self.design, self.fitted(rows))

    def fitted(self, rows: Rows) -> ExponentFit:
        """Fit exponents and constants to some rows of the table; terms that become the same are one."""
        found = polish(self.design, self.fit.form, rows, self.strength, _STEPS)
        return distinct(self.design, found, rows, self.strength)

    def refits(self, rows: Rows, draws: Sequence[Rows]) -> tuple[Expression, ...]:
        """Fit exponents and constants to each draw of some rows."""
        return tuple(expression_of(self.design, one) for one in self.fitted_again(rows, draws)[1])

    def fitted_again(self, rows: Rows, draws: Sequence[Rows]) -> tuple[ExponentFit, list[ExponentFit]]:
        """Return the fit to some rows, and those to each draw of them, which begin there."""
        whole = self.fitted(rows)
        return whole, [polish(self.design, whole.form, one, self.strength, _RESAMPLED_STEPS) for one in draws]


def resampled(
    source: Refittable, design: Design, count: int, seed: int
) -> tuple[tuple[ExponentInterval, ...], tuple[Expression, ...]]:
    """Fit to runs of a table that are drawn again from each group, ``count`` times.

    Returns:
        The intervals of the exponents of ``source.refit`` of all rows, those of known terms without a width, and the
        expressions.
    """
    draws = resamples(design, design.every, count, seed)
    if not isinstance(source, Searched):
        return _known(source.refit(design.every)), source.refits(design.every, draws)
    whole, fits = source.fitted_again(design.every, draws)
    return _intervals(design, whole, fits), tuple(expression_of(design, one) for one in fits)


def _known(expression: Expression) -> tuple[ExponentInterval, ...]:
    """Exponents of terms that are known, which no run changes."""
    return tuple(
        ExponentInterval(place, name, power, power, power)
        for place, term in enumerate(expression.terms)
        for product in (term.product, term.rival)
        if product is not None
        for name, power in product.powers.items()
    )


def expression_of(design: Design, fit: ExponentFit) -> Expression:
    """Turn a fitted form into an expression: constants in seconds, factors by name, terms without effect left out."""
    form, constants = fit.form, fit.constants.copy()
    terms, ratio = list[Term](), 0
    for place, atoms in enumerate(form.terms):
        products = [_product(design, atom) for atom in atoms]
        scales = [_scale(design, atom) for atom in atoms]
        constants[:, place] *= scales[0]
        if len(atoms) > 1:
            terms.append(Term(products[0], products[1], float(np.exp(form.log_ratios[ratio]) * scales[1] / scales[0])))
            ratio += 1
        else:
            terms.append(Term(products[0]))
    kept = [place for place in range(len(terms)) if constants[:, place].any()]
    return Expression(
        design.table.names, tuple(terms[place] for place in kept),
        tuple(tuple(float(one) for one in own[kept]) for own in constants),
        design.table.groups, design.table.time_name,
    )  # fmt: skip


def _product(design: Design, atom: Atom) -> Product:
    powers = {
        design.factors[factor].name: round(power, 6)
        for factor, power in zip(atom.factors, atom.powers, strict=True)
        if abs(power) >= 5e-7
    }
    key = design.shape_keys[atom.shape]
    return Product(powers, None if key is None else (key[0], design.factors[key[1]].name))


def _scale(design: Design, atom: Atom) -> float:
    """The number that a constant is multiplied by where factors are no longer relative to their middles."""
    powers = np.round(np.array(atom.powers), 6)
    return float(np.exp(-(powers * np.log(design.middles[list(atom.factors)])).sum())) if len(powers) else 1.0


def _intervals(design: Design, fit: ExponentFit, ensemble: Sequence[ExponentFit]) -> tuple[ExponentInterval, ...]:
    found, place = list[ExponentInterval](), 0
    vectors = np.stack([one.form.start for one in ensemble])
    for number, term in enumerate(fit.form.terms):
        for atom in term:
            for factor, power in zip(atom.factors, atom.powers, strict=True):
                low, high = np.quantile(vectors[:, place], [0.1, 0.9])
                found.append(ExponentInterval(number, design.factors[factor].name, power, float(low), float(high)))
                place += 1
    return tuple(found)
