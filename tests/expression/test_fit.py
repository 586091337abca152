"""A fit finds what was planted, extrapolates, and says the same for the same seed."""

import numpy as np
from expression.planted import SCALING, planted, scaling_law

from cdmpp.expression import FitSettings, fit_runs
from cdmpp.expression.expression import Expression

QUICK = FitSettings(budget_s=5, resamples=10)
BEYOND = {"gpus": [16.0, 32.0], "batch": [256.0, 512.0]}


def test_times_beyond_the_range_follow_the_planted_expression():
    fitted = fit_runs(planted(scaling_law, SCALING, 40, 0.01), QUICK)
    truth = scaling_law({name: np.array(values) for name, values in BEYOND.items()})
    found = fitted.predict(BEYOND)
    assert np.abs(found.times_s / truth - 1).max() < 0.05
    assert found.outside == (("gpus", "batch"),) * 2
    assert (found.low_s < found.times_s).all() and (found.times_s < found.high_s).all()


def test_the_same_seed_gives_the_same_expression():
    table = planted(scaling_law, SCALING, 30, 0.05)
    assert fit_runs(table, QUICK).expression == fit_runs(table, QUICK).expression


def test_json_reads_back():
    expression = fit_runs(planted(scaling_law, SCALING, 30, 0.01), QUICK).expression
    assert Expression.from_json(expression.json) == expression


def test_python_gives_the_times_of_the_expression():
    expression = fit_runs(planted(scaling_law, SCALING, 30, 0.01), QUICK).expression
    names: dict = {}
    exec(expression.python(), names)
    columns = {"gpus": np.array([4.0]), "batch": np.array([64.0])}
    expected = expression.times_s(columns, np.array([0]))[0]
    assert np.isclose(names["step_s"](gpus=4.0, batch=64.0), expected, rtol=1e-5)
