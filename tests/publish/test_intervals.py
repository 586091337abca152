"""The page of intervals, and intervals of answers without code that are added to a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cdmpp
from benchmarks.publish import intervals, recalibrate
from benchmarks.publish.model_data import data_of
from cdmpp.data.derived_table import write_codes
from cdmpp.data.loading import load_dataset
from cdmpp.data.splits import make_split
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.recipes.train import train
from cdmpp.training.config import Run, TrainConfig
from tests.model.test_models import SMALL
from tests.toy_data import write_toy_dataset

N = 400


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A shipped model of a toy data set with code vectors, and the folder with its data."""
    root = tmp_path_factory.mktemp("data")
    write_toy_dataset(root / "toy", n=N)
    codes = np.random.default_rng(0).uniform(0, 6, (N, CODE_WIDTH)).astype(np.float32)
    write_codes(root / "toy" / "codes" / "part-00000.parquet", {f"record{i:05d}": codes[i] for i in range(N)})
    dataset = load_dataset(root / "toy", progress=False)
    config = TrainConfig.from_dict({"model": SMALL, "trainer": {"epochs": 1, "batch_size": 32}})
    split = make_split(dataset, "by_task", 0, validation_fraction=0.5)
    result = train(dataset, split, config, Run(root / "run", 0, False, "cpu"))
    return root, result.predictor


def test_a_row_for_each_kind_of_answer(shipped):
    root, predictor = shipped
    dataset, _ = data_of(predictor, [root])
    split = make_split(dataset, "by_task", 0, validation_fraction=0.5)
    rows = list(intervals.rows_of("toy", predictor, dataset, split))
    assert [row[1:3] for row in rows] == [
        [kind, answered]
        for answered in ("with code", "without code")
        for kind in ("unseen tasks (validation)", "unseen tasks (test)")
    ]
    assert all(50 < float(row[5]) <= 100 and float(row[8]) >= float(row[5]) for row in rows)
    older = replace(predictor.calibration, without_code=None)
    predictor.calibration, kept = older, predictor.calibration
    assert list(intervals.rows_of("toy", predictor, dataset, split))[-1][3] == "no intervals"
    predictor.calibration = kept


def test_what_training_fits_is_what_is_added_to_an_older_model(shipped, tmp_path, monkeypatch):
    root, predictor = shipped
    dataset, _ = data_of(predictor, [root])
    split = make_split(dataset, "by_task", 0, validation_fraction=0.5)
    monkeypatch.setattr(recalibrate, "data_of", lambda *_: (dataset, split))
    monkeypatch.setattr(recalibrate, "SHIPPED", tmp_path)
    fitted = predictor.calibration.without_code
    predictor.calibration = replace(predictor.calibration, without_code=None)
    predictor.save(tmp_path / "older")
    recalibrate.main("older", str(root))
    again = cdmpp.load_model(tmp_path / "older")
    predictor.calibration = replace(predictor.calibration, without_code=fitted)
    np.testing.assert_allclose(again.calibration.without_code.conformal.upper, fitted.conformal.upper, rtol=1e-3)
    assert "validation tasks" in again.card["intervals"]["without_machine_code_calibrated_on"]


def test_missing_records_are_named(shipped, tmp_path):
    with pytest.raises(DataError, match="no data set toy below"):
        data_of(shipped[1], [tmp_path])
