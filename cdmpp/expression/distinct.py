"""Distinct terms: a fitted form without terms of no effect and without terms that are the same."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from cdmpp.expression.design import Design
from cdmpp.expression.exponents import ExponentFit, refitted
from cdmpp.expression.form import Atom, Form, Term

Rows = npt.NDArray[np.intp]
_SAME = 0.01
"""Exponents that differ by less are written alike, and no runs tell them apart."""


def distinct(design: Design, fit: ExponentFit, rows: Rows, strength: float) -> ExponentFit:
    """Return a fit without terms whose constants are all 0, and with terms of the same form as one.

    Constants are fitted to ``rows`` again; exponents of terms that are the same become those of the largest.
    """
    while True:
        if (used := fit.constants.any(axis=0)).any() and not used.all():
            fit = refitted(design, fit.form.without(np.flatnonzero(~used)), rows, strength)
            continue
        terms, sizes = fit.form.terms, (fit.form.columns(design, fit.form.start[None])[0] * fit.constants[
            design.table.codes]).mean(axis=0)  # fmt: skip
        pairs = itertools.combinations(range(len(terms)), 2)
        same = next((pair for pair in pairs if _is_same_term(fit.form, *pair)), None)
        if same is not None:
            fit = refitted(design, fit.form.without([min(same, key=lambda one: sizes[one])]), rows, strength)
            continue
        alike = next((place for place, term in enumerate(terms) if len(term) > 1 and _is_same(*term)), None)
        if alike is None:
            return fit
        single: Term = (terms[alike][0],)
        rest = fit.form.without([alike])
        fit = refitted(design, Form((*rest.terms, single), rest.log_ratios), rows, strength)


def _is_same_term(form: Form, first: int, second: int) -> bool:
    one, other = form.terms[first], form.terms[second]
    if len(one) != len(other) or not all(map(_is_same, one, other)):
        return False
    return len(one) == 1 or abs(form.ratio_of(first) - form.ratio_of(second)) < _SAME


def _is_same(first: Atom, second: Atom) -> bool:
    if first.shape != second.shape:
        return False
    powers, others = (dict(zip(one.factors, one.powers, strict=True)) for one in (first, second))
    return all(abs(powers.get(factor, 0.0) - others.get(factor, 0.0)) < _SAME for factor in powers | others)
