"""A model scaled to a device by few programs: nearer there, the same elsewhere, and known again when loaded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cdmpp
from cdmpp import devices
from cdmpp.data.loading import load_dataset
from cdmpp.errors import CdmppError, DataError
from cdmpp.measure import disturbance
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes import calibrate as recipe
from cdmpp.recipes.calibrate import CalibrateSettings, calibrate, scale_to
from tests.recipes.test_train_script import ROOT

NEW = replace(devices.get("xeon-icelake-avx2").with_spec(l3_kb=40000.0), name="new-cpu")


@pytest.fixture(scope="module")
def known():
    """Programs of a device that the model knows; the same times some factor longer stand for a new one."""
    dataset = load_dataset(ROOT / "datasets" / "xeon-icelake-avx2", "xeon-icelake-avx2", progress=False)
    return dataset.take(np.arange(0, len(dataset), 7))


@pytest.fixture(scope="module")
def model():
    return cdmpp.load_model("cpus")


def slower(dataset, factor):
    return replace(dataset, latency_s=factor * dataset.latency_s)


def some(dataset, tasks, seed=0):
    chosen = np.random.default_rng(seed).permutation(np.unique(dataset.task_ids))[:tasks]
    return np.flatnonzero(np.isin(dataset.task_ids, chosen))


def bias(model, dataset, device, rows):
    seen = model.examine(recipe.tensors_of(dataset, rows, device), np.arange(len(rows)))
    return float(np.median(seen.log_prediction - np.log(dataset.latency_s[rows])))


def test_a_dozen_tasks_tell_how_much_slower_it_is(known, model):
    new, few = slower(known, 1.7), some(known, 12)
    rest = np.setdiff1d(np.arange(len(new)), few)
    scaled, factors = scale_to(model, NEW, new, few)
    assert bias(model, new, NEW, rest) < -0.4
    assert abs(bias(scaled, new, NEW, rest)) < 0.12
    assert 1.3 < factors["core"] < 2.1


def test_known_devices_are_answered_as_before(known, model):
    scaled, _ = scale_to(model, NEW, slower(known, 2.0), some(known, 12))
    rows = np.arange(0, len(known), 9)
    np.testing.assert_array_equal(predict_rows(scaled, known, rows), predict_rows(model, known, rows))


def test_it_is_known_again_and_never_called_trained(known, model, tmp_path):
    scaled, _ = scale_to(model, NEW, slower(known, 1.5), some(known, 12))
    scaled.calibrated |= {"new-cpu"}
    scaled.save(tmp_path / "model")
    again = cdmpp.load_model(tmp_path / "model")
    assert again.calibrated == {"new-cpu"} and again.trained_on["new-cpu"].core == "ice_lake"
    asts = known.asts.take(np.arange(20))
    one, other = (m.predict(asts, device="new-cpu") for m in (scaled, again))
    np.testing.assert_array_equal(one.latency_s, other.latency_s)
    assert not other.trained_on_device and other.calibrated and "a few timed kernels" in other.expected
    assert set(other.intervals) == {0.8, 0.9}
    unknown = again.predict(asts, device="epyc-9005")
    assert not unknown.calibrated and "nothing was measured" in unknown.expected


def test_what_cannot_be_calibrated_is_said(tmp_path, monkeypatch, known):
    with pytest.raises(CdmppError, match="a100 has none"):
        calibrate(CalibrateSettings("a100", tmp_path, "cpus"))
    with pytest.raises(CdmppError, match="reads no machine code"):
        calibrate(CalibrateSettings("epyc-9005", tmp_path, "a100"))
    monkeypatch.setattr(recipe, "probe", lambda: type("Found", (), {"spec": lambda _: {"clock_mhz": 3000.0}})())
    monkeypatch.setattr(recipe, "_measure", lambda *_: known.take(some(known, 3)))
    monkeypatch.setattr(disturbance, "load_of_others", lambda: 0.0)  # whatever else runs meanwhile
    with pytest.raises(DataError, match="3 calibration kernels could be measured, it takes 6"):
        calibrate(CalibrateSettings("epyc-9005", tmp_path, "cpus"))


def test_factors_that_make_the_answers_worse_are_not_stored(tmp_path, monkeypatch, known):
    """Each kernel is off by a factor of its own, so what the others tell of one is wrong."""
    few = known.take(some(known, 8))
    offs = dict(zip(np.unique(few.task_ids), [2.5, 0.4] * 4, strict=True))
    few = slower(few, np.array([offs[task] for task in few.task_ids]))
    monkeypatch.setattr(recipe, "probe", lambda: type("Found", (), {"spec": lambda _: {}})())
    monkeypatch.setattr(recipe, "_measure", lambda *_: few)
    monkeypatch.setattr(disturbance, "load_of_others", lambda: 0.0)
    settings = CalibrateSettings("epyc-9005", tmp_path, "cpus")
    with pytest.raises(DataError, match=r"worse on epyc-9005: .* use cpus as it is, or add --force"):
        calibrate(settings)
    assert not (tmp_path / "model").exists()
    calibrate(replace(settings, force=True))
    assert cdmpp.load_model(tmp_path / "model").calibrated == {"epyc-9005"}


@pytest.mark.parametrize(("mean", "median", "stored"), [(24.9, 17.0, True), (28.3, 14.1, False), (28.3, 17.0, False)])
def test_a_median_that_fell_does_not_excuse_a_mean_that_grew(tmp_path, mean, median, stored):
    before, after = {"mape": 25.8, "median_ape": 16.6}, {"mape": mean, "median_ape": median}
    settings = CalibrateSettings("epyc-9005", tmp_path, "cpus")
    if stored:
        recipe._check_gain(before, after, settings)
    else:
        with pytest.raises(DataError, match=rf"worse on epyc-9005: 25.8 % off \(median 16.6\) as it is, {mean} %"):
            recipe._check_gain(before, after, settings)
