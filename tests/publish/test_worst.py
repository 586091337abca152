"""The worst predictions are found, named and weighed."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.publish.worst import Errors, errors_of, section
from cdmpp.data.splits import make_split
from cdmpp.errors import DataError
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.evaluation.run import run_cell

OP_CLASSES = ("conv2d", "dense", "softmax", "pool")


def test_one_bad_program_leads_the_table_and_carries_the_error(data, tmp_path):
    dataset = data.dataset
    rows = np.arange(100)
    true = dataset.latency_s[rows]
    predicted = true * 1.01
    predicted[17] = true[17] * 100  # 9900 % beside 99 times 1 %
    text = section(dataset, Errors(rows, true, predicted), "title", n_worst=3)
    assert "MAPE 100.0 %: 100.0 from predictions that are too long, 0.0 from those too short" in text
    assert "The worst 1 % of the 100 programs carry 99 % of it" in text
    worst = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(worst) == 3 and str(dataset.record_ids[17]) in worst[0]
    groups = ("| 1", "| 2", "| 5", "| over")
    counted = [int(line.split("|")[2]) for line in text.splitlines() if line.startswith(groups)]
    assert sum(counted) == 100
    points = [
        float(line.split("|")[4]) for line in text.splitlines() if line.startswith(tuple(f"| {c} " for c in OP_CLASSES))
    ]
    assert sum(points) == pytest.approx(100.0, abs=0.3), "the classes' points add up to the MAPE"


def test_errors_are_those_of_the_cell(data, tmp_path):
    cell = Cell("random", 0, "constant")
    result = run_cell(data, "a100", cell, CellOptions(tmp_path))
    errors = errors_of(data.dataset, tmp_path, "a100", cell)
    assert np.array_equal(np.sort(errors.rows), np.sort(make_split(data.dataset, "random", 0).test))
    assert 100 * np.abs(errors.relative).mean() == pytest.approx(result["metrics"]["mape"])
    with pytest.raises(DataError, match="no readable predictions"):
        errors_of(data.dataset, tmp_path, "a100", Cell("random", 1, "constant"))
