"""Fine-tuning to a new device: it learns, it does not forget, it takes nothing from test."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from cdmpp.data.splits import make_split
from cdmpp.errors import CdmppError, DataError
from cdmpp.recipes.fine_tune import errors_by_device, fine_tune
from cdmpp.recipes.train import train
from cdmpp.training.config import TuneConfig
from tests.toy_data import toy_dataset
from tests.training.test_fit import config, quiet

NAMES = ("xeon-icelake", "epyc-9005")
QUICK = TuneConfig(steps=60, batch_size=32, lr=3e-3)


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """A model of one device, data of two; the second is slower by a factor that only its labels tell."""
    dataset, _ = toy_dataset(300, devices=NAMES)
    dataset = replace(dataset, latency_s=np.where(dataset.devices == NAMES[1], 3, 1) * dataset.latency_s)
    split = make_split(dataset, "by_device", 0, target=NAMES[1])
    folder = tmp_path_factory.mktemp("base")
    fitted = train(dataset, split, config(epochs=10), quiet(folder))
    return dataset, split, fitted.predictor


def tune(known, out, tasks=None, chosen=QUICK):
    dataset, split, start = known
    tasks = np.unique(dataset.task_ids[split.pool])[:8] if tasks is None else tasks
    return fine_tune(start, dataset, split, tasks, chosen, quiet(out))


def test_it_learns_the_new_device_and_replay_keeps_the_old(known, tmp_path):
    dataset, split, start = known

    def errors(predictor):
        new = errors_by_device(predictor, dataset, split.test)[NAMES[1]]
        old = errors_by_device(predictor, dataset, split.validation)[NAMES[0]]
        return new["median_ape"], old["median_ape"]

    before, after = errors(start), errors(tune(known, tmp_path / "with").predictor)
    without = errors(tune(known, tmp_path / "without", chosen=replace(QUICK, replay=0.0)).predictor)
    assert after[0] < 0.7 * before[0]
    assert after[1] < without[1]


def test_only_the_chosen_tasks_are_learned_from(known, tmp_path):
    dataset, split, start = known
    tasks = np.unique(dataset.task_ids[split.pool])[:3]
    unknown = dataset.latency_s.copy()
    rest = split.pool[~np.isin(dataset.task_ids[split.pool], tasks)]
    unknown[np.r_[rest, split.test]] = np.nan
    first = tune(known, tmp_path / "a", tasks)
    second = tune((replace(dataset, latency_s=unknown), split, start), tmp_path / "b", tasks)
    rows = split.test
    assert_array_equal(
        *(fitted.predictor.predict(dataset.asts.take(rows), NAMES[1]).latency_s for fitted in (first, second))
    )


def test_tasks_of_test_or_without_labels_are_refused(known, tmp_path):
    dataset, split, _ = known
    for part, rows in (("test", split.test), ("validation", split.validation)):
        with pytest.raises(DataError, match=f"in the {part} part"):
            tune(known, tmp_path, [dataset.task_ids[rows[0]]])
    with pytest.raises(DataError, match="no labelled program, the first is nowhere"):
        tune(known, tmp_path, ["nowhere"])


def test_steps_decide_the_epochs():
    assert TuneConfig(steps=100, batch_size=10).trainer(100).epochs == 10
    assert TuneConfig(steps=1, batch_size=10).trainer(1000).epochs == 1
    trainer = TuneConfig(steps=100, batch_size=10).trainer(3)
    assert trainer.epochs == trainer.validate_every == 100
    for wrong in ({"steps": 0}, {"replay": -1.0}):
        with pytest.raises(CdmppError, match="tuning"):
            TuneConfig(**wrong)
