"""Stepwise: what was planted is found among factors and terms that help by chance, and what is missing is added."""

import numpy as np
import pytest
from expression.planted import planted

from cdmpp.expression import FitSettings, fit_runs
from cdmpp.expression.design import Design
from cdmpp.expression.exponents import polish
from cdmpp.expression.form import Atom, Form
from cdmpp.expression.searched import expression_of
from cdmpp.expression.stepwise import criterion, free_numbers, stepwise

VALUES = {name: [1, 2, 4, 8, 16] for name in ("x", "y", "z")}
LAW = [{}, {"x": 0.75, "z": 1.5}, {"y": 0.5}]


def law(columns):
    return 0.4 + 0.2 * columns["x"] ** 0.75 * columns["z"] ** 1.5 + 0.7 * columns["y"] ** 0.5


def design_of(noise):
    return Design.of(planted(law, VALUES, 80, noise))


BEGINS = {
    "too many factors and terms": [
        Atom((), ()), Atom((0, 1, 2), (0.7, 0.02, 1.5)), Atom((0, 1), (0.03, 0.5)), Atom((0, 2), (-1.0, 0.1)),
    ],
    "two terms for one": [Atom((), ()), Atom((0, 2), (0.7, 1.5)), Atom((1,), (0.3,)), Atom((1,), (0.8,))],
    "a factor and a term too few": [Atom((2,), (1.5,)), Atom((), ())],
    "a power for a constant and a power": [Atom((0, 2), (0.7, 1.4)), Atom((1,), (0.3,))],
    "many terms that fit by chance": [
        Atom((0, 1, 2), (0.75, 0.003, 1.5)), Atom((0, 1), (-0.09, 0.44)), Atom((0, 1), (0.1, 1.9)),
        Atom((1, 2), (2.0, 1.0)), Atom((0, 1), (-0.04, -1.0)),
    ],
    "exponents that were fixed": [Atom((), ()), Atom((0, 2), (1.0, 1.0), fixed=frozenset({0, 2})), Atom((1,), (1.0,))],
}  # fmt: skip


@pytest.mark.parametrize("begin", BEGINS.values(), ids=BEGINS)
@pytest.mark.parametrize(("noise", "near"), [(0.01, 0.05), (0.05, 0.15)])
def test_steps_lead_to_the_planted_form(begin, noise, near):
    design = design_of(noise)
    fit = stepwise(design, Form(tuple((atom,) for atom in begin)))
    terms = [term.product.powers for term in expression_of(design, fit).terms]
    assert sorted(map(sorted, terms)) == sorted(map(sorted, LAW))
    for powers in LAW:
        own = next(term for term in terms if set(term) == set(powers))
        assert all(abs(own[name] - power) < near for name, power in powers.items())


def test_the_criterion_counts_what_is_used():
    design = design_of(0.01)
    fit = polish(
        design, Form(((Atom((), ()),), (Atom((0, 2), (0.75, 1.5)),), (Atom((1,), (0.5,)),))), design.every, 0.0
    )
    assert free_numbers(fit) == 6
    expected = 80 * np.log(fit.squared_error) + 6 * np.log(80)
    assert criterion(design, fit) == pytest.approx(expected, abs=1e-3)
    assert fit.squared_error == pytest.approx(0.01**2, rel=0.4)


@pytest.mark.parametrize(("noise", "near", "off"), [(0.01, 0.1, 0.03), (0.05, 0.15, 0.1)])
def test_a_fit_finds_a_sum_of_terms(noise, near, off):
    """Columns without a known meaning: both terms by their exponents, and times at four times the range.

    With 5 % of noise least squares of the planted form finds 0.64 for 0.5, so no fit can be nearer.
    """
    fitted = fit_runs(planted(law, VALUES, 80, noise), FitSettings(seed=0, budget_s=2.0, resamples=4))
    found = [term.product.powers for term in fitted.expression.terms]
    assert len(found) == len(LAW)
    for powers in LAW:
        assert any(all(abs(one.get(name, 0.0) - powers.get(name, 0.0)) < near for name in VALUES) for one in found)
    beyond = {name: np.array([64.0]) for name in VALUES}
    assert abs(fitted.predict(beyond).times_s[0] / law(beyond)[0] - 1) < off
