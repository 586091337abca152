"""Errors of cores that were left out: bounds that hold what they say, and only what can be is read back."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cdmpp.errors import DataError
from cdmpp.uncertainty.calibration import LOCAL_INPUTS
from cdmpp.uncertainty.conformal import LEVELS
from cdmpp.uncertainty.unseen import Bounds, UnitErrors, Unseen, fit_bounds, fit_unseen


def unit(generator: np.random.Generator, middle: float, spread: float, tasks: int, uneven: float = 0.0) -> UnitErrors:
    """Ten programs a task; the second input, their distance, decides how large errors are where it is ``uneven``."""
    inputs = generator.normal(size=(10 * tasks, LOCAL_INPUTS))
    residuals = generator.normal(middle, spread, 10 * tasks) * np.exp(uneven * inputs[:, 1])
    return UnitErrors(residuals, inputs, np.repeat(np.arange(tasks), 10))


def shares(bounds: Bounds, errors: UnitErrors, level: float) -> np.ndarray:
    """Which programs are inside."""
    low, high = (np.log(end) for end in bounds.intervals(np.zeros(len(errors.task_ids)), errors.inputs)[level])
    return (low <= errors.log_residuals) & (errors.log_residuals <= high)


@pytest.fixture
def unseen() -> Unseen:
    generator = np.random.default_rng(0)
    errors = {"ice_lake": unit(generator, 0.1, 0.2, 400), "zen4": unit(generator, -0.2, 0.3, 100)}
    blind = {name: replace(one, log_residuals=4 * one.log_residuals) for name, one in errors.items()}
    metrics = {"ice_lake": {"mape": 18.0, "median_ape": 14.0}, "zen4": {"mape": 31.0, "median_ape": 24.0, "n": 3}}
    return fit_unseen(metrics, errors, blind)


def test_units_weigh_the_same() -> None:
    """One unit has four times the programs; exchanging the sizes changes nothing but the scatter."""
    middles = {"ice_lake": 0.1, "zen4": -0.2}
    sizes = ((400, 100), (100, 400))
    ends = [
        fit_bounds(
            {
                name: unit(np.random.default_rng(i), middle, 0.2, tasks)
                for i, ((name, middle), tasks) in enumerate(zip(middles.items(), counts, strict=True))
            }
        ).levels[0.8]
        for counts in sizes
    ]
    assert ends[0] == pytest.approx(ends[1], abs=0.04)


@pytest.mark.parametrize("known", [3, 5])
def test_a_new_unit_is_held_as_often_as_promised(known: int) -> None:
    """Units differ by their middles, of which few are known: bounds of what they span would hold too few programs."""
    held = {level: [] for level in LEVELS}
    for repeat in range(150):
        generator = np.random.default_rng(repeat)
        *units, new = (unit(generator, generator.normal(0, 0.15), 0.2, 40) for _ in range(known + 1))
        bounds = fit_bounds(dict(zip("abcde", units, strict=False)))
        for level in LEVELS:
            held[level].append(shares(bounds, new, level).mean())
    for level in LEVELS:
        assert np.mean(held[level]) == pytest.approx(level, abs=0.035)


def test_every_program_of_a_task_weighs_less_where_it_has_many() -> None:
    residuals = np.concatenate([np.zeros(99), np.ones(1)])
    tasks = np.concatenate([np.zeros(99, int), np.ones(1, int)])
    found = fit_bounds({"a": UnitErrors(residuals, np.zeros((100, LOCAL_INPUTS)), tasks)})
    assert found == Bounds(dict.fromkeys(LEVELS, (0.0, 1.0)))


def test_far_from_the_training_and_near_it_as_many_are_held() -> None:
    """One width for all held 95 % of what is near and half of what is far."""
    held = {level: [] for level in LEVELS}
    for repeat in range(20):
        generator = np.random.default_rng(repeat)
        units = {name: unit(generator, 0.0, 0.25 * np.exp(0.1 * generator.normal()), 150, 0.6) for name in "abc"}
        new, bounds = unit(generator, 0.0, 0.25, 150, 0.6), fit_bounds(units)
        near = new.inputs[:, 1] < -0.5
        for level in LEVELS:
            inside = shares(bounds, new, level)
            held[level].append((inside.mean(), inside[near].mean(), inside[new.inputs[:, 1] > 0.5].mean()))
    for level in LEVELS:
        assert np.mean(held[level], axis=0) == pytest.approx([level] * 3, abs=0.035)


def test_answers_without_machine_code_have_their_own(unseen: Unseen) -> None:
    logs, inputs = np.log([1e-6, 1e-3]), np.zeros((2, LOCAL_INPUTS))
    with_code, without, mixed = (
        unseen.intervals(logs, inputs, np.array(rows)) for rows in ([False] * 2, [True] * 2, [False, True])
    )
    for level in LEVELS:
        widths = [np.log(high / low) for low, high in (with_code[level], without[level])]
        assert (widths[1] > 3 * widths[0]).all()
        for end in (0, 1):
            assert mixed[level][end].tolist() == [with_code[level][end][0], without[level][end][1]]
        low, high = without[level]
        assert (low <= np.exp(logs)).all() and (np.exp(logs) <= high).all()
    older = replace(unseen, without_code=None).intervals(logs, inputs, np.array([False, True]))
    assert np.isnan(older[0.8][0]).tolist() == [False, True]


def test_the_worst_core_is_what_to_expect(unseen: Unseen) -> None:
    text = unseen.expected("epyc-9005")
    assert "zen4 31 % (median 24)" in text and "what zen4 shows on epyc-9005" in text


def test_settings_come_back(unseen: Unseen) -> None:
    again = Unseen.restore(json.loads(json.dumps(unseen.settings())))
    assert again.settings() == unseen.settings() and again.units == unseen.units


def test_those_of_older_models_are_read() -> None:
    """They had one width for all programs, and none for answers without machine code."""
    flat = {"0.8": [-0.4, 0.5], "0.9": [-0.6, 0.7]}
    older = Unseen.restore({"units": {"zen4": {"mape": 31.0, "median_ape": 24.0}}, "bounds": flat})
    low, high = older.intervals(np.zeros(2), None, np.array([False, True]))[0.8]
    assert low[0] == pytest.approx(np.exp(-0.4)) and high[0] == pytest.approx(np.exp(0.5)) and np.isnan(low[1])


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.pop("units"),
        lambda s: s.update(units={}),
        lambda s: s["units"]["zen4"].pop("mape"),
        lambda s: s["bounds"].pop("0.8"),
        lambda s: s["bounds"].update({"0.8": [0.1, 0.2]}),
        lambda s: s["bounds"].update({"0.8": [float("nan"), 0.2]}),
        lambda s: s["bounds"].update({"0.8": "wide"}),
        lambda s: s["bounds_without_code"].pop("0.9"),
        lambda s: s["bounds"]["scale"].pop("mean"),
        lambda s: s["bounds"]["scale"].update(mean=[0.0]),
        lambda s: s["bounds"]["scale"]["mean"].__setitem__(0, float("inf")),
        lambda s: s["bounds"]["scale"]["deviation"].__setitem__(0, 0.0),
    ],
)
def test_what_cannot_be_is_refused(unseen: Unseen, change) -> None:
    settings = json.loads(json.dumps(unseen.settings()))
    change(settings)
    with pytest.raises(DataError):
        Unseen.restore(settings)
