"""Coverage and width of intervals: counted right, in cells and tables, and absent where a model has none."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.data.splits import make_split
from cdmpp.evaluation.baselines import BASELINES
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.evaluation.forecast import conformal_forecast
from cdmpp.evaluation.run import run_cell
from cdmpp.evaluation.trees import TreeSettings
from cdmpp.uncertainty.coverage import coverage
from tests.evaluation.conftest import make_data


def test_coverage_by_hand():
    true, tasks = np.array([1.0, 2.0, 3.0, 4.0]), ["a", "b", "b", "b"]
    lower, upper = np.array([1.0, 3.0, 3.0, 1.0]), np.array([2.0, 6.0, 9.0, 3.0])
    found = coverage(true, {0.9: (lower, upper), 0.8: (lower, lower)}, tasks)
    assert list(found) == ["0.8", "0.9"]
    assert found["0.9"]["coverage"] == 50 and found["0.9"]["width"] == 2.5
    assert found["0.9"]["task_coverage"] == pytest.approx(100 * (1 + 1 / 3) / 2)


def test_trees_hold_what_they_promise_on_other_tasks():
    data = make_data(n_tasks=90, each=4)
    found = []
    for seed in range(3):
        split = make_split(data.dataset, "by_task", seed, validation_fraction=0.5)
        baseline = BASELINES["xgb_ours"](TreeSettings(depths=(3,), rounds=30))
        baseline.fit(data, split, seed)
        forecast = conformal_forecast(baseline, data, split)
        assert np.ptp(np.log(forecast.intervals[0.8][1] / forecast.latency_s)) < 1e-9
        tasks = data.dataset.task_ids[split.test]
        found.append(coverage(data.dataset.latency_s[split.test], forecast.intervals, tasks))
    for level in (0.8, 0.9):
        assert 100 * level - 12 < np.mean([each[str(level)]["task_coverage"] for each in found]) <= 100


def test_cells_carry_intervals_where_there_are_any(data, tmp_path, monkeypatch):
    from cdmpp.evaluation import forecast as module

    small = TreeSettings(depths=(3,), rounds=20)
    monkeypatch.setattr(module, "TreeSettings", lambda threads: small)
    options = CellOptions(tmp_path)
    trees = run_cell(data, "x", Cell("by_task", 0, "xgb_ours"), options)
    constant = run_cell(data, "x", Cell("by_task", 0, "constant"), options)
    assert set(trees["intervals"]) == {"0.8", "0.9"} and trees["intervals"]["0.8"]["width"] > 1
    assert constant["intervals"] == {}
    with np.load(Cell("by_task", 0, "xgb_ours").path(tmp_path, "x").with_suffix(".npz")) as stored:
        assert (stored["lower_0.8"] <= stored["predicted_s"]).all() and (stored["lower_0.9"] > 0).all()
        assert (stored["upper_0.9"] >= stored["upper_0.8"]).all()
