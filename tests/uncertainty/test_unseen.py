"""Errors of cores that were left out: bounds that hold what they say, and only what can be is read back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cdmpp.errors import DataError
from cdmpp.uncertainty.unseen import Unseen, fit_unseen


@pytest.fixture
def unseen() -> Unseen:
    generator = np.random.default_rng(0)
    residuals = {"ice_lake": generator.normal(0.1, 0.2, 4000), "zen4": generator.normal(-0.2, 0.3, 1000)}
    tasks = {"ice_lake": np.repeat(np.arange(400), 10), "zen4": np.repeat(np.arange(100), 10)}
    metrics = {"ice_lake": {"mape": 18.0, "median_ape": 14.0}, "zen4": {"mape": 31.0, "median_ape": 24.0, "n": 3}}
    return fit_unseen(metrics, residuals, tasks)


def test_units_weigh_the_same(unseen: Unseen) -> None:
    generator = np.random.default_rng(1)
    for level, (low, high) in unseen.bounds.items():
        held = [
            ((r > low) & (r < high)).mean()
            for r in (generator.normal(0.1, 0.2, 9999), generator.normal(-0.2, 0.3, 9999))
        ]
        assert np.mean(held) == pytest.approx(level, abs=0.03)


def test_every_program_of_a_task_weighs_less_where_it_has_many() -> None:
    residuals = np.concatenate([np.zeros(99), np.ones(1)])
    tasks = np.concatenate([np.zeros(99, int), np.ones(1, int)])
    found = fit_unseen({"a": {"mape": 1.0, "median_ape": 1.0}}, {"a": residuals}, {"a": tasks})
    assert found.bounds[0.8] == (0.0, 1.0)


def test_intervals_hold_the_prediction(unseen: Unseen) -> None:
    logs = np.log([1e-6, 1e-3])
    for low, high in unseen.intervals(logs).values():
        assert (low <= np.exp(logs)).all() and (np.exp(logs) <= high).all()


def test_the_worst_core_is_what_to_expect(unseen: Unseen) -> None:
    text = unseen.expected("epyc-9005")
    assert "zen4 31 % (median 24)" in text and "what zen4 shows on epyc-9005" in text


def test_settings_come_back(unseen: Unseen) -> None:
    assert Unseen.restore(json.loads(json.dumps(unseen.settings()))) == unseen


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
    ],
)
def test_what_cannot_be_is_refused(unseen: Unseen, change) -> None:
    settings = json.loads(json.dumps(unseen.settings()))
    change(settings)
    with pytest.raises(DataError):
        Unseen.restore(settings)
