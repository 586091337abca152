"""FormChoice: known terms without a search where the budget is short, and a search that keeps to its budget."""

import numpy as np
from expression.planted import SCALING, planted, scaling_law

from cdmpp.expression import FitSettings, fit_runs
from cdmpp.expression.blend import Blend
from cdmpp.expression.design import Design
from cdmpp.expression.exponents import polish
from cdmpp.expression.form import Atom, Form
from cdmpp.expression.stepwise import criterion, stepwise
from cdmpp.expression.work import Work

SHORT = FitSettings(budget_s=0.1, resamples=4)


def test_a_short_budget_fits_all_known_terms_at_once():
    table = planted(scaling_law, SCALING, 60, 0.01)
    fitted = fit_runs(table, SHORT)
    design = Design.of(table)
    assert fitted.expression == Blend.of(design).refit(design.every)
    points = {"gpus": [16.0, 32.0], "batch": [128.0, 256.0]}
    truth = scaling_law({name: np.array(values) for name, values in points.items()})
    found = fitted.predict(points)
    assert np.abs(found.times_s / truth - 1).max() < 0.1
    assert (found.low_s < truth).all() and (truth < found.high_s).all()
    assert fitted.error_held_out is not None and fitted.error_random < 0.05


def test_a_short_budget_still_searches_where_no_terms_are_known():
    values = {"width": [10, 20, 40, 80], "depth": [3, 6, 12, 24]}
    table = planted(lambda columns: 1e-3 * columns["width"] ** 1.5 / columns["depth"] ** 0.5, values, 60, 0.01)
    fitted, design = fit_runs(table, SHORT), Design.of(table)
    plain = np.log(table.times_s / Blend.of(design).refit(design.every).times_s(table.factors, table.codes))
    assert fitted.error_inside < 0.7 * np.abs(plain).mean()


def test_steps_end_when_their_budget_is_spent_with_the_best_so_far():
    table = planted(
        lambda columns: 0.4 + 0.2 * columns["x"] ** 0.75 * columns["y"], {"x": [1, 2, 4, 8], "y": [1, 2, 4]}, 60, 0.01
    )
    design = Design.of(table)
    begun = Form(((Atom((0,), (1.0,)),),))
    first = criterion(design, polish(design, begun, design.every, 0.0))
    scores = [criterion(design, stepwise(design, begun, budget)) for budget in (1e-6, 0.1, np.inf)]
    assert scores[0] < first + 2 and scores[2] < scores[0] - 20 and scores[1] > scores[2] - 2


def test_work_counts_fits():
    design = Design.of(planted(scaling_law, SCALING, 20, 0.01))
    work = Work(0.01)
    fits = 0
    while not work.is_done:
        work.polish(design, Form(((Atom((0,), (1.0,)),),)), design.every, 0.0, 3)
        fits += 1
    assert 1 < fits < 10 and work.spent_s >= 0.01
