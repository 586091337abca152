"""Intervals of a fine-tuned model come from programs of the new device that the judged weights had not seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cdmpp.predict.model_folder import load
from cdmpp.training.cross_calibration import cross_calibrate
from tests.training.test_adapt import NAMES, QUICK, known, tune  # noqa: F401  (known is a fixture)

SHORT = replace(QUICK, steps=20)


def test_a_new_device_gets_intervals_of_its_own(known, tmp_path):  # noqa: F811
    dataset, split, start = known
    tasks = np.unique(dataset.task_ids[split.pool])
    assert len(tasks) >= 20
    tuned = tune(known, tmp_path / "tuned", tasks, SHORT)
    assert tuned.predictor.calibration is None
    told = cross_calibrate(
        tuned.predictor, start, dataset, split, tasks, SHORT, tmp_path / "folds", 0, folds=2, accelerator="cpu"
    )
    assert "2 folds" in told
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
    tuned = tune(known, tmp_path / "tuned", tasks, SHORT)
    told = cross_calibrate(tuned.predictor, start, dataset, split, tasks, SHORT, tmp_path / "folds", 0)
    assert told.startswith("none") and not (tmp_path / "folds").exists()
    assert tuned.predictor.predict(dataset.asts.take(split.test), device=NAMES[1]).intervals == {}
