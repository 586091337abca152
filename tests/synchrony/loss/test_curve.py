"""The loss curve: planted constants are found, intervals hold them, and what is no falling curve is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.errors import DataError, UsageError
from cdmpp.synchrony.loss.curve import LossCurve, fit_curve, read_curve
from cdmpp.synchrony.outcome import WorkerShare
from cdmpp.synchrony.processes.place import WorkerPlace
from cdmpp.synchrony.processes.record import LossPoint, RunRecord, WorkerRecord


def points(a, b, c, last, count=40):
    t = np.linspace(0, last, count)
    return t, 1 / (a * t + b) + c


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.2, 5), st.floats(0.3, 3), st.floats(0, 1), st.floats(1, 6)
)  # height, floor and length in units of the curve
def test_planted_constants_are_found(height, steep, floor, scale):
    last = 10**scale
    a, b = 4 * steep / (height * last), 1 / height
    found = fit_curve(*points(a, b, floor, last))
    assert found.a == pytest.approx(a, rel=1e-3)
    assert found.b == pytest.approx(b, rel=1e-3)
    assert found.c == pytest.approx(floor, abs=1e-3 * height)
    target = floor + height / 3
    assert found.loss_at(found.samples_to(target)) == pytest.approx(target)


def test_interval_holds_the_planted_time_in_nine_of_ten():
    inside = 0
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(0, 0.02, 60)
        t, loss = points(2e-3, 0.5, 0.4, 5000, 60)
        low, high = fit_curve(t, loss + noise).samples_interval(0.6)
        inside += low <= (1 / 0.2 - 0.5) / 2e-3 <= high
    assert 30 <= inside <= 40


def test_a_target_at_the_floor_is_never_reached():
    curve = LossCurve(0.1, 0.5, 0.3)
    assert curve.samples_to(2.5) == 0
    for loss in (0.3, 0.1):
        with pytest.raises(UsageError, match=r"never reached: the fitted curve falls to 0\.3"):
            curve.samples_to(loss)


def test_interval_is_open_where_the_floor_may_be_above():
    sure = ((0.0,) * 3, (0.0,) * 3, (0.0, 0.0, 0.01))
    low, high = LossCurve(0.1, 0.5, 0.3, sure).samples_interval(0.35)
    assert 0 < low < math.inf and high == math.inf


@pytest.mark.parametrize(
    ("samples", "loss", "words"),
    [
        ([0, 1, 2], [3, 2, 1], "3 points: expected at least 4"),
        ([0, 1, 2, 3], [3, 2, 1], "4 numbers of samples and 3 losses"),
        ([0, 1, 1, 3], [3, 2, 1, 0.5], "rise from point to point"),
        ([0, 1, 2, 3], [3, 2, math.nan, 0.5], "finite numbers"),
        ([0, 1, 2, 3], [3, 2, 0, 0.5], "losses above 0"),
        ([0, 1, 2, 3], [1, 2, 1, 2], "the loss does not fall"),
    ],
)
def test_what_is_no_falling_curve_is_refused(samples, loss, words):
    with pytest.raises(DataError, match=words):
        fit_curve(samples, loss)


def test_a_file_is_read_and_named_in_errors(tmp_path):
    file = tmp_path / "curve.csv"
    file.write_text("samples,loss\n" + "".join(f"{n},{1 / (0.01 * n + 1) + 0.2}\n" for n in range(0, 1000, 50)))
    found = read_curve(file)
    assert (found.a, found.b, found.c) == (pytest.approx(0.01), pytest.approx(1), pytest.approx(0.2))
    assert found.samples == 950
    file.write_text("\ufeffsamples, loss\n" + "".join(f"{n}, {1 / (0.01 * n + 1) + 0.2}\n" for n in range(0, 1000, 50)))
    assert read_curve(file).a == pytest.approx(0.01)
    file.write_text("steps,loss\n1,2\n")
    with pytest.raises(DataError, match="expected a line samples,loss"):
        read_curve(file)
    file.write_text("samples,loss\n0,2\n1,1\n")
    with pytest.raises(DataError, match=r"curve\.csv: a loss curve has 2 points"):
        read_curve(file)


def test_a_run_of_one_worker_is_a_curve(tmp_path):
    file = tmp_path / "run.json"
    share = WorkerShare(10, 80, 10, 0, 0.0, 0.0, {0: 10}, 0.0, 0.0)
    worker = WorkerRecord(WorkerPlace(), share, 0.1, 0.0, ())
    losses = tuple(LossPoint(n / 10, 8 * n, 1 / (0.02 * 8 * n + 1) + 0.3, None) for n in range(10))
    record = RunRecord({"name": "bsp"}, 0, 1.0, 4, (worker,), (), losses)
    record.save(file)
    found = read_curve(file)
    assert (found.a, found.c) == (pytest.approx(0.02, rel=1e-3), pytest.approx(0.3, rel=1e-3))
    replace(record, workers=(worker, worker)).save(file)
    with pytest.raises(DataError, match=r"run\.json is of 2 workers: a loss curve is that of one"):
        read_curve(file)
    replace(record, losses=losses[:3]).save(file)
    with pytest.raises(DataError, match="fewer than 4 losses"):
        read_curve(file)
