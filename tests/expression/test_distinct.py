"""Distinct terms: terms of the same form are one before shares are told, and the times stay."""

from dataclasses import replace

import numpy as np
import pytest
from expression.planted import SCALING, planted, scaling_law

from cdmpp.expression import FitSettings, fit_runs
from cdmpp.expression.design import Design
from cdmpp.expression.distinct import distinct
from cdmpp.expression.exponents import refitted
from cdmpp.expression.form import Atom, Form
from cdmpp.expression.searched import expression_of

BATCH, GPUS = 1, 0


@pytest.fixture(scope="module")
def design():
    return Design.of(planted(scaling_law, SCALING, 40, 0.01))


def fitted(design, *terms, ratios=()):
    return refitted(design, Form(tuple(terms), ratios), design.every, 1e-3)


def test_terms_of_the_same_form_are_one(design):
    work = lambda power: (Atom((GPUS, BATCH), (power, 1.0)),)  # noqa: E731
    log = next(place for place, key in enumerate(design.shape_keys) if key and key[0] == "log2")
    fit = fitted(design, work(-1.0), (Atom((), (), log),), work(-1.001), (Atom((GPUS,), (0.0,), log),), (Atom((), ()),))
    found = distinct(design, fit, design.every, 1e-3)
    expression = expression_of(design, found)
    assert len(expression.terms) == 3
    assert sorted(term.product.shape is not None for term in expression.terms) == [False, False, True]
    law = scaling_law(design.table.factors)
    assert np.abs(expression.times_s(design.table.factors, design.table.codes) / law - 1).max() < 0.02


def test_terms_without_effect_go(design):
    fit = fitted(design, (Atom((GPUS, BATCH), (-1.0, 1.0)),), (Atom((GPUS,), (3.0,)),), (Atom((), ()),))
    without = replace(fit, constants=fit.constants * np.array([1.0, 0.0, 1.0]))
    found = distinct(design, without, design.every, 1e-3)
    assert found.form.terms == (fit.form.terms[0], fit.form.terms[2]) and (found.constants > 0).all()


def test_an_overlap_of_a_term_with_itself_is_the_term(design):
    work = Atom((GPUS, BATCH), (-1.0, 1.0))
    fit = fitted(design, (work, work), (Atom((), ()),), ratios=(0.5,))
    found = distinct(design, fit, design.every, 1e-3).form
    assert found.log_ratios == () and sorted(len(term) for term in found.terms) == [1, 1]


def test_terms_of_two_overlapping_products_differ_by_their_ratio(design):
    pair = (Atom((GPUS, BATCH), (-1.0, 1.0)), Atom((), ()))
    fit = fitted(design, pair, pair, ratios=(0.5, 2.0))
    assert len(distinct(design, fit, design.every, 1e-3).form.terms) >= 1
    same = fitted(design, pair, pair, ratios=(0.5, 0.5))
    assert len(distinct(design, same, design.every, 1e-3).form.terms) == 1


@pytest.mark.parametrize("budget_s", [0.2, 1.0])
def test_no_term_of_a_short_search_is_written_twice_and_intervals_are_of_its_terms(budget_s):
    found = fit_runs(planted(scaling_law, SCALING, 60, 0.05), FitSettings(budget_s=budget_s, resamples=4))
    products = [term.product for term in found.expression.terms if term.rival is None]
    texts = [f"{ ({name: round(power, 2) for name, power in one.powers.items()}) } {one.shape}" for one in products]
    assert len(set(texts)) == len(texts)
    for one in found.exponents:
        term = found.expression.terms[one.term]
        powers = {**term.product.powers, **(term.rival.powers if term.rival else {})}
        assert abs(powers.get(one.factor, 0.0) - one.value) < 1e-5
