"""Chances of programs to be the fastest of their task: shipped, stored, and where no ranker is there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import cdmpp
from cdmpp.data.loading import load_dataset
from cdmpp.data.splits import make_split
from cdmpp.errors import ModelFormatError
from cdmpp.predict.catalogue import SHIPPED

DEVICE = "epyc-genoa-avx2"


@pytest.fixture(scope="module")
def unseen():
    """Programs of networks that ``cpus`` was not trained on, of tasks with at least six."""
    dataset = load_dataset(Path("datasets") / DEVICE)
    rows = make_split(dataset, "held_out", 0).test
    names, counts = np.unique(dataset.task_ids[rows], return_counts=True)
    return dataset.take(rows[np.isin(dataset.task_ids[rows], names[counts >= 6])])


def regret(dataset, chances: np.ndarray, n: int) -> float:
    """Mean over tasks of the best latency among the ``n`` likeliest over the best of all."""
    found = []
    for task in np.unique(dataset.task_ids):
        own = np.flatnonzero(dataset.task_ids == task)
        likeliest = own[np.argsort(-chances[own])][:n]
        found.append(dataset.latency_s[likeliest].min() / dataset.latency_s[own].min())
    return float(np.mean(found))


def test_the_shipped_ranker_beats_predictions_without_machine_code(unseen):
    predictor, tasks = cdmpp.load_model("cpus"), unseen.task_ids
    chances = predictor.chances(unseen.asts, DEVICE, tasks)
    predictor.ranker = None
    plain = predictor.chances(unseen.asts, DEVICE, tasks)
    ours, theirs = ([regret(unseen, way, n) for n in (1, 2, 4)] for way in (chances, plain))
    assert np.all(np.array(ours) < (1.6, 1.25, 1.06)) and sum(ours) < sum(theirs) - 0.05


@pytest.mark.parametrize("model", ["cpus", "xeon-icelake"])
def test_chances_are_shares_of_each_task(unseen, model):
    predictor, some = cdmpp.load_model(model), unseen.take(np.arange(60))
    assert predictor.ranker is not None
    chances = predictor.chances(some.asts, DEVICE, some.task_ids)
    assert chances.shape == (60,) and (chances >= 0).all()
    for task in np.unique(some.task_ids):
        own = some.task_ids == task
        assert chances[own].sum() == pytest.approx(1)
        alone = predictor.chances(some.asts.take(np.flatnonzero(own)), DEVICE, some.task_ids[own])
        np.testing.assert_allclose(alone, chances[own], rtol=1e-4)


def test_a_saved_ranker_answers_the_same(unseen, tmp_path):
    some = unseen.take(np.arange(40))
    predictor = cdmpp.load_model("cpus")
    predictor.save(tmp_path / "copy")
    copied = cdmpp.load_model(tmp_path / "copy")
    np.testing.assert_array_equal(
        *(one.chances(some.asts, DEVICE, some.task_ids) for one in (predictor, copied)),
    )


def tampered(folder: Path, **config: object) -> Path:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **config, "config_sha256": None}))
    return folder


def test_damaged_rankers_are_refused(tmp_path):
    def fresh(name: str) -> Path:
        return Path(shutil.copytree(SHIPPED / "cpus", tmp_path / name))

    with pytest.raises(ModelFormatError, match="ranker is 'yes', expected true or false"):
        cdmpp.load_model(tampered(fresh("odd"), ranker="yes"))
    with pytest.raises(ModelFormatError, match="holds unknown tensors: ranker.mean"):
        cdmpp.load_model(tampered(fresh("unsaid"), ranker=False))
    for name, change, said in (
        ("lost", lambda _: None, "lacks tensors: ranker.scale"),
        ("short", lambda value: value[:-1].clone(), "ranker.scale has the shape"),
        ("nan", lambda value: torch.full_like(value, torch.nan), "ranker.scale holds"),
    ):
        folder = fresh(name)
        tensors = load_file(folder / "model.safetensors")
        tensors["ranker.scale"] = change(tensors["ranker.scale"])
        save_file({key: value for key, value in tensors.items() if value is not None}, folder / "model.safetensors")
        with pytest.raises(ModelFormatError, match=said):
            cdmpp.load_model(folder)
