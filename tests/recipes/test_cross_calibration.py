"""Intervals of a fine-tuned model come from programs of the new device that the judged weights had not seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cdmpp.data.splits import make_split
from cdmpp.errors import CdmppError, DataError
from cdmpp.predict.model_folder import load
from cdmpp.recipes.adapted import adapt
from cdmpp.recipes.cross_calibration import calibrate_by_folds, cross_calibrate
from cdmpp.recipes.train import train
from cdmpp.training.config import TrainConfig
from tests.model.test_models import SMALL
from tests.recipes.test_fine_tune import NAMES, QUICK, known  # noqa: F401  (known is a fixture)
from tests.toy_data import relabelled, toy_dataset
from tests.training.test_fit import quiet

SHORT = replace(QUICK, steps=20, folds=2)


def test_a_new_device_gets_intervals_of_its_own(known, tmp_path):  # noqa: F811
    dataset, split, start = known
    tasks = np.unique(dataset.task_ids[split.pool])
    assert len(tasks) >= 20
    tuned = adapt(start, dataset, split, tasks, SHORT, quiet(tmp_path / "tuned"))
    assert tuned.predictor.calibration is None
    assert cross_calibrate(tuned, dataset, split).startswith("cross-conformal")
    tuned.predictor.save(tmp_path / "model")
    test = dataset.asts.take(split.test)
    given = load(tmp_path / "model").predict(test, device=NAMES[1])
    low, high = given.intervals[0.9]
    assert (low < given.latency_s).all() and (given.latency_s < high).all()
    inside = (low <= dataset.latency_s[split.test]) & (dataset.latency_s[split.test] <= high)
    assert inside.mean() > 0.6
    assert any(name.endswith(NAMES[1]) for name in tuned.predictor.calibration.conformal.groups)


def test_few_tasks_give_none_rather_than_those_of_the_sources(known, tmp_path):  # noqa: F811
    dataset, split, start = known
    tasks = np.unique(dataset.task_ids[split.pool])[:4]
    tuned = adapt(start, dataset, split, tasks, SHORT, quiet(tmp_path / "tuned"))
    assert cross_calibrate(tuned, dataset, split).startswith("none")
    assert tuned.predictor.predict(dataset.asts.take(split.test), device=NAMES[1]).intervals == {}


def test_all_tasks_vouch_for_the_intervals_where_folds_are_asked_for(tmp_path):
    dataset, _ = toy_dataset(300)
    split = make_split(dataset, "by_task", 0, test_fraction=0.2, validation_fraction=0.1)
    # What nobody may look at is no number: training or calibrating on it would end in NaN or an error.
    hidden = relabelled(dataset, latency_s=np.where(np.isin(np.arange(300), split.test), np.nan, dataset.latency_s))
    config = TrainConfig.from_dict(
        {"model": SMALL, "trainer": {"epochs": 3, "batch_size": 32, "lr": 3e-3, "interval_folds": 3}}
    )
    result = train(hidden, split, config, quiet(tmp_path))
    few = result.predictor.calibration.conformal
    calibrate_by_folds(result, hidden, split, config, quiet(tmp_path))
    restored = load(result.model_dir)
    both = np.concatenate([split.train, split.validation])
    assert restored.calibration.conformal.n_tasks[0] == len(np.unique(dataset.task_ids[both])) > few.n_tasks[0]
    assert "3 folds" in restored.card["intervals"]["calibrated_on"]
    low, high = restored.predict(dataset.asts.take(split.test), device="xeon-icelake").intervals[0.8]
    inside = (low <= dataset.latency_s[split.test]) & (dataset.latency_s[split.test] <= high)
    assert inside.mean() > 0.5


def test_more_folds_than_tasks_are_refused(tmp_path):
    dataset, split = toy_dataset(30)
    config = TrainConfig.from_dict({"model": SMALL, "trainer": {"epochs": 1, "batch_size": 32, "interval_folds": 40}})
    result = train(dataset, split, config, quiet(tmp_path))
    with pytest.raises(DataError, match="interval_folds=40"):
        calibrate_by_folds(result, dataset, split, config, quiet(tmp_path))
    with pytest.raises(CdmppError, match="interval_folds"):
        TrainConfig.from_dict({"trainer": {"interval_folds": 2}})
