"""Intervals keep what they promise on tasks that were not seen, and say so where they cannot promise."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.errors import DataError
from cdmpp.uncertainty.conformal import LEVELS, fit_conformal, task_quantile


def made_up(rng, n_tasks, uneven=True, effect=0.5, noise=0.3):
    """Skewed residuals with a random offset of each task; the first input decides their size where ``uneven``."""
    sizes = rng.integers(1, 25, n_tasks)
    tasks = np.repeat([f"{rng.integers(1 << 60):x}" for _ in range(n_tasks)], sizes)
    inputs = rng.normal(size=(len(tasks), 3))
    offsets = np.repeat(effect * rng.normal(size=n_tasks), sizes)
    residuals = offsets + np.expm1(2 * noise * rng.normal(size=len(tasks)))
    factor = np.exp(0.8 * inputs[:, 0]) if uneven else 1.0
    return residuals * factor, inputs, tasks


def calibrated(residuals, inputs, tasks):
    return fit_conformal(np.zeros(len(tasks)), residuals, tasks, inputs)


def inside_and_width(conformal, residuals, inputs, tasks, level):
    """Mean of the tasks' shares inside, and each program's log width."""
    lower, upper = (np.log(bound) for bound in conformal.intervals(np.zeros(len(tasks)), inputs)[level])
    _, which, sizes = np.unique(tasks, return_inverse=True, return_counts=True)
    return np.average((lower <= residuals) & (residuals <= upper), weights=(1 / sizes)[which]), upper - lower


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("local", [False, True])
def test_new_tasks_are_covered_as_promised(uneven, local):
    shares = {level: [] for level in LEVELS}
    for repeat in range(40):
        rng = np.random.default_rng(repeat)
        residuals, inputs, tasks = made_up(rng, 100, uneven)
        conformal = calibrated(residuals, inputs if local else None, tasks)
        new = made_up(rng, 150, uneven)
        for level in LEVELS:
            shares[level].append(inside_and_width(conformal, new[0], new[1] if local else None, new[2], level)[0])
    for level in LEVELS:
        assert level - 0.01 < np.mean(shares[level]) < level + 0.022


def test_task_effects_would_fool_programs_that_are_taken_for_independent():
    """Few tasks of many programs each: quantiles over programs alone promise too much."""
    by_task, by_program = [], []
    for repeat in range(100):
        rng = np.random.default_rng(repeat)
        tasks = np.repeat([f"{rng.integers(1 << 60):x}" for _ in range(12)], 50)
        residuals = np.repeat(rng.normal(size=12), 50) + 0.01 * rng.normal(size=600)
        new = np.abs(rng.normal(size=400))
        by_task.append((new <= np.log(calibrated(residuals, None, tasks).intervals(np.zeros(1))[0.8][1])).mean())
        by_program.append((new <= np.quantile(np.abs(residuals), 0.8)).mean())
    assert np.mean(by_program) < 0.77 and np.mean(by_task) > 0.79


def test_intervals_are_narrow_where_errors_are_small():
    residuals, inputs, tasks = made_up(np.random.default_rng(0), 150)
    _, width = inside_and_width(calibrated(residuals, inputs, tasks), residuals, inputs, tasks, 0.8)
    small, large = (width[chosen].mean() for chosen in (inputs[:, 0] < -1, inputs[:, 0] > 1))
    assert large > 2.5 * small
    constant = calibrated(residuals, None, tasks)
    assert np.ptp(inside_and_width(constant, residuals, None, tasks, 0.8)[1]) < 1e-12
    assert np.median(width) < inside_and_width(constant, residuals, None, tasks, 0.8)[1][0]


def test_skewed_errors_give_lopsided_intervals_around_the_prediction():
    rng = np.random.default_rng(1)
    tasks = np.repeat([f"task{i}" for i in range(80)], 10)
    lower, upper = (np.log(b) for b in calibrated(rng.exponential(1.0, 800), None, tasks).intervals(np.zeros(1))[0.8])
    assert lower[0] < 0 < upper[0] and upper[0] > 5 * -lower[0]


@pytest.mark.parametrize("n_tasks", [1, 3, 7, 15, 30])
def test_a_higher_level_contains_a_lower_one(n_tasks):
    residuals, inputs, tasks = made_up(np.random.default_rng(n_tasks), n_tasks)
    bounds = calibrated(residuals, inputs, tasks).intervals(np.zeros(len(tasks)), inputs)
    (low, high), (lower, higher) = bounds[0.8], bounds[0.9]
    assert (lower <= low).all() and (high <= higher).all()


def test_neither_order_nor_names_of_programs_matter():
    residuals, inputs, tasks = made_up(np.random.default_rng(2), 40)
    order = np.random.default_rng(3).permutation(len(tasks))
    first, second = calibrated(residuals, inputs, tasks), calibrated(residuals[order], inputs[order], tasks[order])
    np.testing.assert_allclose(first.lower, second.lower, rtol=1e-9)
    np.testing.assert_allclose(first.upper, second.upper, rtol=1e-9)
    np.testing.assert_allclose(first.scale(inputs), second.scale(inputs), rtol=1e-9)


@pytest.mark.parametrize(
    ("n_tasks", "promised"),
    [(1, (0.4, 0.45)), (3, (0.6, 0.675)), (4, (0.8, 0.8)), (7, (0.8, 0.8)), (8, (0.8, 0.8)), (9, (0.8, 0.9))],
)
def test_few_tasks_promise_less_and_say_so(n_tasks, promised):
    residuals, inputs, tasks = made_up(np.random.default_rng(5), n_tasks)
    conformal = calibrated(residuals, inputs, tasks)
    card = conformal.describe()["all"]
    assert card["tasks"] == n_tasks and not conformal.scale.coefficients.any()
    assert tuple(level["promised"] for level in card["levels"].values()) == promised
    np.testing.assert_allclose(conformal.upper, -conformal.lower)


def test_few_tasks_keep_what_they_promise_and_one_wild_program_does_not_decide():
    shares = []
    for repeat in range(100):
        rng = np.random.default_rng(repeat)
        conformal = calibrated(*made_up(rng, 6, uneven=False))
        shares.append(inside_and_width(conformal, *made_up(rng, 60, uneven=False), 0.9)[0])
    assert np.mean(shares) > conformal.promised()[0.9] == 0.8
    tasks, residuals = np.repeat(list("abcdef"), 100), np.random.default_rng(0).normal(size=600)
    before = calibrated(residuals, None, tasks).upper[0, 1]
    residuals[0] = 1000.0
    assert calibrated(residuals, None, tasks).upper[0, 1] < 1.2 * before


def test_a_device_with_enough_tasks_is_calibrated_alone():
    rng = np.random.default_rng(6)
    names = np.repeat([f"task{i}" for i in range(60)], 8)
    paths = np.array(["gpu/noisy"] * 240 + ["cpu/quiet"] * 200 + ["cpu/rare"] * 40)
    residuals = rng.normal(size=480) * np.where(paths == "gpu/noisy", 1.0, 0.1)
    conformal = fit_conformal(np.zeros(480), residuals, names, groups=paths)
    assert conformal.groups == ("", "cpu", "cpu/quiet", "gpu")  # gpu/noisy is all of gpu, cpu/rare has 5 tasks
    asked = ["cpu/rare", "cpu/new", "cpu/quiet", "gpu/noisy", "npu/new"]
    _, upper = conformal.intervals(np.zeros(5), groups=asked)[0.8]
    assert upper[0] == upper[1] and upper[2] < upper[4] < upper[3]
    assert upper[4] == conformal.intervals(np.zeros(1))[0.8][1][0]


def test_task_quantiles_by_hand():
    scores, tasks = np.array([1.0, 2.0, 3.0, 4.0]), np.array(["a", "b", "b", "b"])
    assert task_quantile(scores, tasks, 1 / 3) == 1.0  # one task of three: a, b and the one at infinity
    assert task_quantile(scores, tasks, 0.34) == 2.0
    assert task_quantile(scores, tasks, 2 / 3) == 4.0
    assert task_quantile(scores, tasks, 0.7) == np.inf
    assert task_quantile(scores, tasks, 1.0, at_infinity=False) == 4.0


def test_wrong_questions_get_clear_answers():
    residuals, inputs, tasks = made_up(np.random.default_rng(7), 30)
    conformal = calibrated(residuals, inputs, tasks)
    with pytest.raises(DataError, match="3 inputs of a local scale, given 0"):
        conformal.intervals(residuals)
    with pytest.raises(DataError, match="needs programs"):
        calibrated(np.zeros(0), None, [])
    with pytest.raises(DataError, match="one length"):
        calibrated(residuals, inputs[1:], tasks)
    with pytest.raises(DataError, match="without a label"):
        calibrated(np.full(len(tasks), np.nan), None, tasks)


def test_perfect_models_and_constant_inputs_do_no_harm():
    tasks = np.repeat([f"task{i}" for i in range(30)], 3)
    conformal = calibrated(np.zeros(90), np.ones((90, 2)), tasks)
    lower, upper = conformal.intervals(np.zeros(1), np.ones((1, 2)))[0.9]
    assert 0.99 < lower[0] <= 1 <= upper[0] < 1.01
    assert conformal.scale.coefficients.any()
