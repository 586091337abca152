"""A model of framework operators scaled to a device by three timed calls of each family."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import cdmpp
from cdmpp import cli, devices
from cdmpp.data.loading import load_dataset
from cdmpp.errors import CdmppError
from cdmpp.measure import disturbance
from cdmpp.measure.torch_plan import CallLimits, calibration_plan, operator_plan
from cdmpp.operators.operator import FAMILIES
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes import calibrate as recipe
from cdmpp.recipes.calibrate import CalibrateSettings, calibrate
from cdmpp.recipes.calibration_calls import calibration_calls
from tests.recipes.test_train_script import ROOT

DEVICE = "xeon-emeraldrapids"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Nothing is measured here, whatever else runs meanwhile."""
    monkeypatch.setattr(disturbance, "load_of_others", lambda: 0.0)


@pytest.fixture(scope="module")
def calls():
    """Calls that all take 1.6 times what ``torch-gpus`` thinks of a device that it never saw."""
    measured = load_dataset(ROOT / "datasets" / f"{DEVICE}-torch", DEVICE, progress=False)
    expected = predict_rows(cdmpp.load_model("torch-gpus"), measured, np.arange(len(measured)))
    return replace(measured, latency_s=1.6 * expected)


def timed(calls):
    limits = CallLimits.of(devices.get(DEVICE), 50.0, None)
    classes = np.unique(calls.op_classes)
    assert {operator.kind.op_class for operator in calibration_plan(limits, 3, 0)} <= set(classes)
    return np.concatenate([np.flatnonzero(calls.op_classes == one)[:3] for one in classes])


def test_so_many_of_each_family_are_planned_the_first_of_the_long_list():
    limits = CallLimits.of(devices.get("a100"), 50.0, None)
    few = calibration_plan(limits, 3, 7)
    assert Counter(operator.kind.family for operator in few) == dict.fromkeys(FAMILIES, 3)
    later = iter(operator_plan(limits, 400, 7))
    assert all(operator in later for operator in few)  # in that order


def test_a_number_of_calls_without_torch_is_refused(capsys):
    assert cli.main(["model", "calibrate", "--device", DEVICE, "--calls", "5"]) == 2
    assert "--runtime torch" in capsys.readouterr().err


def test_three_calls_a_family_bring_it_near_and_it_is_known_again(calls, tmp_path, monkeypatch):
    chosen = timed(calls)
    rest = np.setdiff1d(np.arange(len(calls)), chosen)
    monkeypatch.setattr(recipe, "_measure", lambda *_: calls.take(chosen))
    monkeypatch.setattr(recipe, "probe", lambda: type("Found", (), {"spec": lambda _: {"clock_mhz": 3000.0}})())
    found = calibrate(CalibrateSettings(DEVICE, tmp_path, "torch-gpus", runtime="torch"))

    def median_ape(model):
        return np.median(np.abs(predict_rows(model, calls, rest) / calls.latency_s[rest] - 1))

    scaled = cdmpp.load_model(tmp_path / "model")
    assert median_ape(cdmpp.load_model("torch-gpus")) == pytest.approx(0.375, abs=0.001)
    assert median_ape(scaled) < 0.1
    assert scaled.calibrated == {DEVICE} and found["programs"] == len(chosen)
    assert found["left_out_tasks"]["mape"] < found["before"]["mape"]


def test_what_cannot_be_calibrated_is_said(tmp_path):
    with pytest.raises(CdmppError, match="the model cpus knows no framework operators"):
        calibrate(CalibrateSettings(DEVICE, tmp_path, "cpus", runtime="torch"))
    with pytest.raises(CdmppError, match="is a GPU, and torch .* sees none here"):
        calibrate(CalibrateSettings("h100", tmp_path, "torch-gpus", runtime="torch"))


def test_calibration_calls_lie_apart_in_each_family_and_are_the_same_again():
    start, device = cdmpp.load_model("torch-gpus"), devices.get("l4")
    limits = CallLimits.of(device, 50.0, None)
    chosen = calibration_calls(start, device, limits, 3, 0)
    assert Counter(operator.kind.family for operator in chosen) == dict.fromkeys(FAMILIES, 3)
    assert len(set(chosen)) == len(chosen) and all(map(limits.allow, chosen))
    assert calibration_calls(start, device, limits, 3, 0) == chosen

    def least_apart(operators):
        """Factor between the latencies of the two products that are nearest to each other, mean over seeds."""
        logs = np.sort(np.log(start.predict([o for o in operators if o.name == "bmm"], device).latency_s))
        return np.diff(logs).min()

    seeds = range(2)
    spread = [least_apart(calibration_calls(start, device, limits, 3, seed)) for seed in seeds]
    at_random = [least_apart(calibration_plan(limits, 3, seed)) for seed in seeds]
    assert np.mean(spread) > np.mean(at_random)


def test_calls_of_each_family_are_a_number_above_zero(tmp_path):
    with pytest.raises(CdmppError, match=r"calls is 0: expected a whole number from 1 to 200 \(calls of each family"):
        CalibrateSettings(DEVICE, tmp_path, "torch-gpus", runtime="torch", calls=0)
