"""Stepwise: a form becomes shorter or longer, one step at a time, while the Bayesian information criterion falls.

A search that minimises errors on a few held-out folds keeps factors and terms that help there by chance. Here all runs
count, exponents are fitted to the end, and each free number costs what Schwarz (1978) says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cdmpp.expression.candidates import Candidates, independent
from cdmpp.expression.design import Design
from cdmpp.expression.exponents import ExponentFit
from cdmpp.expression.form import Atom, Form
from cdmpp.expression.work import Work

_STEPS = 30
"""Steps of the fit of exponents, at most."""
_ROUNDS = 12
_BEGUN = (-0.5, 0.5)
"""Exponents at which a factor that joins a term begins."""
_SCREENED = 6
"""Terms that are tried as one more."""
_CONSTANT = Form(((Atom((), ()),),))
"""Steps begin here, too; and a constant is always tried as one more term, because powers near 0 take its place."""
_ALIKE = 2.0
"""Criteria that differ by less say nothing (Kass and Raftery, 1995): then the shorter form is taken."""
_LEAST = 1e-12
"""Mean squared relative errors below this are alike."""


def stepwise(design: Design, form: Form, budget_s: float = np.inf) -> ExponentFit:
    """Take the step that lowers the criterion most, until none does: a term or a factor less or more.

    Args:
        design: of the table.
        form: where to begin; exponents that it fixes are freed.
        budget_s: nominal seconds of all fits: one half for steps from ``form``, what is left from a constant.

    Returns:
        The best fit to all rows, without regularisation.
    """
    candidates, work = Candidates.of(design), Work(budget_s / 2)

    def fitted(one: Form) -> tuple[float, ExponentFit]:
        fit = work.polish(design, one, design.every, 0.0, _STEPS)
        return criterion(design, fit), fit

    def step(tried: Iterator[Form], best: tuple[float, ExponentFit]) -> tuple[float, ExponentFit]:
        for one in tried:
            if work.is_done:
                break
            best = min(best, fitted(one), key=lambda one: one[0])
        return best

    def improved(begun: Form) -> tuple[float, ExponentFit]:
        best = fitted(begun)
        for _ in range(_ROUNDS):
            here = best[1].form
            after = step(itertools.chain(_shorter(here), _longer(design, candidates, here)), best)
            if after is best:
                break
            best = after
        return best

    begun = improved(_freed(form))
    work.budget_s = budget_s
    best, found = min(begun, improved(_CONSTANT), key=lambda one: one[0])
    work.budget_s = np.inf  # there are few shorter forms
    while (shorter := step(_shorter(found.form), (best + _ALIKE, found))[1]) is not found:
        found = shorter
    return found


def criterion(design: Design, fit: ExponentFit) -> float:
    """Return the Bayesian information criterion of a fit to all rows of a design."""
    rows = len(design.table)
    return float(rows * np.log(fit.squared_error + _LEAST) + free_numbers(fit) * np.log(rows))


def free_numbers(fit: ExponentFit) -> int:
    """Count constants above 0 and exponents of terms that have one; an exponent that is fixed counts, too."""
    used = (fit.constants > 0).any(axis=0)
    kept = fit.form.without(np.flatnonzero(~used))
    return int((fit.constants > 0).sum()) + len(kept.start)


def _freed(form: Form) -> Form:
    return replace(form, terms=tuple(tuple(replace(atom, fixed=frozenset()) for atom in term) for term in form.terms))


def _shorter(form: Form) -> Iterator[Form]:
    for place, term in enumerate(form.terms):
        rest = form.without((place,))
        if rest.terms:
            yield rest
        if len(term) == 1:
            for factor in term[0].factors:
                yield _with(form, place, _lacking(term[0], factor))


def _longer(design: Design, candidates: Candidates, form: Form) -> Iterator[Form]:
    factors = independent(design)
    for place, term in enumerate(form.terms):
        key = design.shape_keys[term[0].shape]
        for factor in factors if len(term) == 1 else ():
            if factor not in term[0].factors and (key is None or key[1] != factor):
                for power in _BEGUN:
                    more = (*term[0].factors, factor), (*term[0].powers, power)
                    yield _with(form, place, replace(term[0], factors=more[0], powers=more[1]))
    here = form.columns(design, form.start[None])
    relative = design.relative(here, design.constants(here, design.every), design.every)[0]
    joining = [candidates.atoms[one] for one in candidates.best(design, here[0], relative, _SCREENED)]
    for atom in dict.fromkeys((*_CONSTANT.atoms, *joining)):
        if (atom,) not in form.terms:
            yield Form((*form.terms, (atom,)), form.log_ratios)


def _with(form: Form, place: int, atom: Atom) -> Form:
    return replace(form, terms=(*form.terms[:place], (atom,), *form.terms[place + 1 :]))


def _lacking(atom: Atom, factor: int) -> Atom:
    kept = [place for place, one in enumerate(atom.factors) if one != factor]
    return Atom(tuple(atom.factors[place] for place in kept), tuple(atom.powers[place] for place in kept), atom.shape)
