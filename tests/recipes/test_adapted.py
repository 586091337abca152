"""Few labels never make a model worse than it was: held-out tasks choose between it, scaled and tuned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cdmpp.recipes import adapted
from cdmpp.recipes.adapted import adapt
from tests.recipes.test_fine_tune import NAMES, QUICK, known  # noqa: F401  (known is a fixture)
from tests.training.test_fit import quiet

FEW = replace(QUICK, folds=3)


def few_tasks(known, number):  # noqa: F811
    dataset, split, _ = known
    return np.unique(dataset.task_ids[split.pool])[:number].tolist()


def test_labels_that_tell_something_tune(known, tmp_path):  # noqa: F811
    dataset, split, start = known
    found = adapt(start, dataset, split, few_tasks(known, 9), FEW, quiet(tmp_path))
    assert found.way == "tuned" and found.errors["tuned"] < 0.7 * found.errors["zero_shot"]
    assert set(dataset.task_ids[found.rows]) == set(few_tasks(known, 9))
    ape = 100 * np.abs(np.exp(found.log_prediction) / dataset.latency_s[found.rows] - 1)
    tasks = dataset.task_ids[found.rows]
    assert_allclose(found.errors["tuned"], np.mean([ape[tasks == task].mean() for task in set(tasks)]))


def test_labels_that_mislead_leave_the_model_as_it_was(known, tmp_path):  # noqa: F811
    dataset, split, start = known
    tasks = few_tasks(known, 6)
    names = np.array(dataset.task_ids)
    rows = split.pool[np.isin(names[split.pool], tasks)]
    latency_s = dataset.latency_s.copy()
    predicted = start.predict(dataset.asts.take(rows), NAMES[1]).latency_s
    latency_s[rows] = predicted * np.where(names[rows] == tasks[0], 3.0, 1.0)  # the rest is as it expects
    found = adapt(start, replace(dataset, latency_s=latency_s), split, tasks, FEW, quiet(tmp_path))
    assert found.way == "zero_shot"
    assert_array_equal(found.predictor.predict(dataset.asts.take(rows), NAMES[1]).latency_s, predicted)
    assert NAMES[1] in found.predictor.trained_on


def test_one_task_and_no_folds_compare_nothing(known, tmp_path):  # noqa: F811
    dataset, split, start = known
    one = adapt(start, dataset, split, few_tasks(known, 1), FEW, quiet(tmp_path / "one"))
    assert one.way == "zero_shot" and one.errors == {} and len(one.rows) == 0
    off = adapt(start, dataset, split, few_tasks(known, 4), replace(FEW, folds=0), quiet(tmp_path / "off"))
    assert off.way == "tuned" and off.errors == {}


def test_programs_with_machine_code_can_be_scaled(known, tmp_path, monkeypatch):  # noqa: F811
    dataset, split, start = known
    asked = []

    def scaled(model, device, data, rows):
        asked.append((device.name, frozenset(data.task_ids[rows])))
        return model, {}

    monkeypatch.setattr(adapted, "_can_scale", lambda *_: True)
    monkeypatch.setattr(adapted, "scale_to", scaled)
    tasks = few_tasks(known, 3)
    found = adapt(start, dataset, split, tasks, FEW, quiet(tmp_path))
    assert set(found.errors) == {"zero_shot", "scaled", "tuned"}
    assert {name for name, _ in asked} == {NAMES[1]}
    assert [set(tasks) - kept for _, kept in asked[:3]] == [{t} for t in sorted(tasks, key=lambda t: order(asked, t))]


def order(asked, task):
    return next(place for place, (_, kept) in enumerate(asked) if task not in kept)


@pytest.mark.parametrize("folds", [2, 3])
def test_every_task_is_held_out_once(known, folds):  # noqa: F811
    dataset, split, _ = known
    tasks = np.array(few_tasks(known, 7))
    parts = adapted.deal(dataset.task_ids, split.pool, tasks, folds)
    assert len(parts) == folds
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows) and set(dataset.task_ids[rows]) == set(tasks)
