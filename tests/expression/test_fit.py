"""A fit finds what was planted, extrapolates, doubts, and says the same for the same seed."""

import json
import math

import numpy as np
import pytest
from expression.planted import SCALING, planted, scaling_law

from cdmpp.errors import DataError, UsageError
from cdmpp.expression import FitSettings, RunTable, fit_runs, suggest
from cdmpp.expression.design import Design
from cdmpp.expression.expression import Expression
from cdmpp.expression.fit_file import read_fit, write_fit
from cdmpp.expression.folds import random_folds
from cdmpp.expression.takeover import takeovers

QUICK = FitSettings(budget_s=4, resamples=10)
BEYOND = {"gpus": [16.0, 32.0], "batch": [256.0, 512.0]}


@pytest.fixture(scope="module")
def fitted():
    return fit_runs(planted(scaling_law, SCALING, 40, 0.01), QUICK)


def test_times_beyond_the_range_follow_the_planted_expression(fitted):
    truth = scaling_law({name: np.array(values) for name, values in BEYOND.items()})
    found = fitted.predict(BEYOND)
    assert np.abs(found.times_s / truth - 1).max() < 0.1
    assert found.outside == (("gpus", "batch"),) * 2
    sigma = np.log(found.high_s / found.times_s) / 1.28
    assert (np.abs(np.log(truth / found.times_s)) < 3 * sigma).all() and (found.low_s < found.times_s).all()


def test_intervals_widen_with_extrapolation(fitted):
    found = fitted.predict({"gpus": [4.0, 16.0, 64.0], "batch": [64.0, 64.0, 64.0]})
    widths = found.high_s / found.low_s
    assert widths[0] < widths[1] < widths[2] and found.outside[0] == ()


def test_intervals_far_out_are_no_wider_than_noise_and_exponents_ask_for(fitted):
    """The form is right and times have 1 % of noise, so what is uncertain at four times the range is a few per cent."""
    columns = {"gpus": np.array([32.0, 32.0, 8.0]), "batch": np.array([128.0, 512.0, 512.0])}
    found = fitted.predict(columns)
    sigma = np.log(found.high_s / found.low_s) / 2.56
    assert (sigma > 0.008).all() and (sigma < 0.05).all()
    assert (np.abs(np.log(scaling_law(columns) / found.times_s)) < 3 * sigma).all()


POWERS = [({"width": 0.7, "depth": 1.0}, 0.01), ({"width": 1.5, "depth": -0.5}, 0.01), ({"width": 0.9}, 0.05)]


@pytest.mark.parametrize(("powers", "noise"), POWERS)
def test_planted_exponents_are_found(powers, noise):
    """Columns without a known meaning: all there is to find is a power law and a constant."""

    def law(columns):
        return 1e-3 * math.prod(columns[name] ** power for name, power in powers.items())

    values = {"width": [10, 20, 40, 80], "depth": [3, 6, 12, 24]}
    fitted = fit_runs(planted(law, values, 60, noise), QUICK)
    beyond = {name: np.array([4.0 * known[-1]]) for name, known in values.items()}
    assert abs(fitted.predict(beyond).times_s[0] / law(beyond)[0] - 1) < (0.03 if noise < 0.02 else 0.15)
    largest = int(fitted.parts(fitted.points([{name: known[1] for name, known in values.items()}]))[0].argmax())
    product = fitted.expression.terms[largest].product
    assert all(abs(product.powers.get(name, 0.0) - powers.get(name, 0.0)) < 0.1 for name in values)


RECOGNISED = [
    ({"batch": 0.9, "gpus": -0.7, "hidden": 1.5}, {}, ["gpus", "batch", "hidden"]),
    ({"batch": 1.0, "nodes": -1.0}, {"nodes": 0.5}, ["nodes", "batch"]),
]


@pytest.mark.parametrize(("powers", "others", "names"), RECOGNISED)
def test_what_recognised_columns_are_not_known_to_do_is_found_too(powers, others, names):
    """Known terms and the runs nearby explain these runs, but not those at four times the range."""
    values = {"gpus": [1, 2, 4, 8], "nodes": [1, 2, 4], "batch": [16, 32, 64, 128], "hidden": [256, 512, 1024]}

    def law(columns):
        both = [math.prod((columns[name] / values[name][1]) ** own for name, own in one.items())
                for one in (powers, others)]  # fmt: skip
        return 0.1 * both[0] + (0.05 * both[1] if others else 0.0)

    fitted = fit_runs(planted(law, {name: values[name] for name in names}, 80, 0.01), QUICK)
    beyond = {name: 4.0 * np.array(values[name][-2:], dtype=float) for name in names}
    assert np.abs(fitted.predict(beyond).times_s / law(beyond) - 1).max() < 0.03
    for one in filter(None, (powers, others)):
        near = [all(abs(term.product.powers.get(name, 0.0) - one.get(name, 0.0)) < 0.1 for name in names)
                for term in fitted.expression.terms]  # fmt: skip
        assert any(near), fitted.expression.text()


def test_runs_that_were_repeated_are_fitted_by_the_expression_and_not_by_each_other():
    gpus = np.repeat([1.0, 2, 4, 8], 3)
    times_s = (1 / gpus + 0.1) * np.exp(np.random.default_rng(0).normal(0, 0.01, 12))
    fitted = fit_runs(RunTable.of({"gpus": gpus, "step_s": times_s}, "step_s"), QUICK)
    assert fitted.error_inside < 0.02 and fitted.warnings == ()
    assert abs(fitted.predict([{"gpus": 16}]).times_s[0] / 0.1625 - 1) < 0.05


def test_repeated_runs_are_held_out_together():
    gpus = np.repeat([1.0, 2, 4, 8], 3)
    design = Design.of(RunTable.of({"gpus": gpus, "step_s": 1 / gpus}, "step_s"))
    folds = random_folds(design, 4, 0)
    assert len(folds) == 4
    assert all(not set(gpus[one.held]) & set(gpus[one.trained]) for one in folds)


def test_the_same_seed_gives_the_same_answer(fitted):
    again = fit_runs(planted(scaling_law, SCALING, 40, 0.01), QUICK)
    assert again.expression == fitted.expression
    assert np.array_equal(again.predict(BEYOND).high_s, fitted.predict(BEYOND).high_s)


def test_groups_share_a_form_and_have_constants_of_their_own():
    first, second = planted(scaling_law, SCALING, 30, 0.01), planted(scaling_law, SCALING, 30, 0.01, seed=1)
    columns = {name: np.concatenate([first.factors[name], second.factors[name]]) for name in SCALING}
    columns |= {"step_s": np.concatenate([first.times_s, 3 * second.times_s]), "model": ["a"] * 30 + ["b"] * 30}
    fitted = fit_runs(RunTable.of(columns, "step_s", [*SCALING], ["model"]), QUICK)
    point = {"gpus": 4, "batch": 64}
    slow = fitted.predict([point | {"model": "b"}]).times_s[0] / fitted.predict([point | {"model": "a"}]).times_s[0]
    assert abs(slow / 3 - 1) < 0.05 and fitted.expression.groups == ("a", "b")
    with pytest.raises(UsageError, match="no run is of the group 'c': expected one of a, b"):
        fitted.predict([point | {"model": "c"}])


def test_a_permuted_time_is_said_to_be_unexplained():
    table = planted(scaling_law, SCALING, 60, 0.01)
    times_s = np.random.default_rng(0).permutation(table.times_s)
    fitted = fit_runs(RunTable.of({**table.factors, "step_s": times_s}, "step_s"), QUICK)
    assert "the factors do not explain the times" in " ".join(fitted.warnings)


def test_a_fit_that_explains_has_no_doubts(fitted):
    assert fitted.warnings == () and fitted.error_random < 0.05 < fitted.error_constant


def test_an_expression_that_misses_its_own_runs_is_said_to_lean_on_near_ones():
    """A wave is no sum of powers, but near runs tell it: predictions within the range are good all the same."""
    width = np.geomspace(1, 100, 60)
    times_s = np.exp(0.6 * np.sin(2 * np.pi * np.log10(width)) + np.random.default_rng(0).normal(0, 0.01, 60))
    fitted = fit_runs(RunTable.of({"width_x": width, "step_s": times_s}, "step_s"), QUICK)
    assert fitted.error_inside > 0.15 > 2 * fitted.error_random
    (told,) = [one for one in fitted.warnings if "near" in one]
    assert f"off by {100 * fitted.error_inside:.0f} % on the runs that it was fitted to" in told
    assert "predictions lean on the runs near them, and far from all runs there are none" in told


def test_held_out_figures_are_told_apart():
    """With two values of each column none can be held out; those that are drawn at random are there."""
    flat = fit_runs(
        RunTable.of(
            {"gpus": [1, 2] * 4, "batch": [8] * 4 + [16] * 4, "step_s": [8, 4, 8.1, 4.1, 16, 8, 16.1, 8.1]}, "step_s"
        ),
        QUICK,
    )
    assert flat.error_held_out is None and flat.error_random > 0


def test_json_and_file_read_back(fitted, tmp_path):
    assert Expression.from_json(fitted.expression.json) == fitted.expression
    write_fit(fitted, tmp_path / "fit.json")
    again = read_fit(tmp_path / "fit.json")
    assert again.expression == fitted.expression
    for name in ("times_s", "low_s", "high_s"):
        assert np.allclose(getattr(again.predict(BEYOND), name), getattr(fitted.predict(BEYOND), name), rtol=1e-9)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "plan"}', '{"kind": "cdmpp fit", "expression": {}}'])
def test_another_file_is_refused(tmp_path, text):
    (tmp_path / "fit.json").write_text(text)
    with pytest.raises(DataError, match="no file of --save of cdmpp fit"):
        read_fit(tmp_path / "fit.json")


def test_a_file_with_other_intervals_is_refused_by_what_to_do(fitted, tmp_path):
    write_fit(fitted, tmp_path / "fit.json")
    saved = json.loads((tmp_path / "fit.json").read_text())
    saved["spread"] = {"noise": 0.01, "by_doubling": {"gpus": 0.1}, "other": 0.2, "near": 1.0}
    (tmp_path / "fit.json").write_text(json.dumps(saved))
    with pytest.raises(DataError, match="its intervals are not of this version, which has other ones: fit its runs"):
        read_fit(tmp_path / "fit.json")


def test_python_gives_the_times_of_the_expression(fitted):
    names: dict = {}
    exec(fitted.expression.python(), names)
    columns = {"gpus": np.array([1.0, 4.0]), "batch": np.array([64.0, 16.0])}
    expected = fitted.expression.times_s(columns, np.array([0, 0]))
    found = [names["step_s"](gpus=gpus, batch=batch) for gpus, batch in zip(*columns.values(), strict=True)]
    assert np.allclose(found, expected, rtol=1e-5)


def test_text_has_units_and_latex_is_balanced(fitted):
    assert fitted.expression.text().startswith("step_s = ") and " s" in fitted.expression.text()
    latex = fitted.expression.latex()
    assert latex.count("{") == latex.count("}") and r"\mathrm{step\_s}" in latex


@pytest.mark.parametrize(
    ("point", "told"),
    [
        ({"gpus": 4}, "the point has no batch: give gpus, batch"),
        ({"gpus": 4, "batch": 0}, "batch of the point is 0: expected a number above 0"),
        ({"gpus": 4, "batch": "many"}, "batch of the point is 'many'"),
        ({"gpus": 4, "batch": 8, "nodes": 1}, "'nodes', which the fit does not have"),
    ],
)
def test_points_that_cannot_be_are_refused(fitted, point, told):
    with pytest.raises(UsageError, match=told):
        fitted.predict([point])


def test_suggested_runs_make_intervals_shorter():
    fitted = fit_runs(planted(scaling_law, SCALING, 16, 0.05), QUICK)
    found = suggest(fitted, 2)
    assert len(found) == 2 and all(one.width_after < 0.98 * one.width_before for one in found)
    assert [one.width_before for one in found[1:]] == [one.width_after for one in found[:-1]]
    assert len({tuple(one.point.items()) for one in found}) == 2


def test_a_suggested_run_is_of_use_where_it_was_asked(fitted):
    target = {"gpus": 16, "batch": 128}
    (found,) = suggest(fitted, 1, [target])
    assert found.point["gpus"] == 16 and found.width_after < found.width_before


def test_shares_add_up_and_computing_gives_way_to_exchanging(fitted):
    assert np.isclose(fitted.parts(fitted.points([{"gpus": 8, "batch": 32}])).sum(), 1)
    assert any(one.column == "gpus" for one in takeovers(fitted, {"gpus": 1, "batch": 128}))
