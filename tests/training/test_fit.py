"""Whole training runs, shrunk to seconds."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_equal

from cdmpp import devices
from cdmpp.data.splits import Split
from cdmpp.errors import CdmppError, DataError
from cdmpp.training.config import TrainConfig
from cdmpp.training.fit import train
from cdmpp.training.lit import LatencyModule
from tests.model.test_models import SMALL, SMALL_REFERENCE
from tests.toy_data import toy_dataset

DEVICE = devices.get("xeon-icelake")


def config(model=SMALL, loss=None, **trainer):
    return TrainConfig.from_dict(
        {"model": model, "loss": loss or {}, "trainer": {"epochs": 3, "batch_size": 32, "lr": 3e-3, **trainer}}
    )


@pytest.fixture(scope="module")
def data():
    return toy_dataset(200)


def run(data, out, chosen=None, seed=0, **options):
    dataset, split = data
    return train(dataset, split, DEVICE, chosen or config(), out, seed, progress=False, accelerator="cpu", **options)


def test_learns_and_leaves_a_model_folder(data, tmp_path):
    result = run(data, tmp_path, config(epochs=12))
    assert {p.name for p in result.model_dir.iterdir()} == {"model.safetensors", "config.json", "card.json"}
    assert len(result.history) == 12
    assert result.history[-1]["train_loss"] < 0.7 * result.history[0]["train_loss"]
    constant = np.median(data[0].latency_s[data[1].train])
    truth = data[0].latency_s[data[1].validation]
    assert result.val_metrics["mape"] < 100 * np.mean(np.abs(constant - truth) / truth)
    card = json.loads((result.model_dir / "card.json").read_text())
    assert card["validation"]["mape"] == pytest.approx(result.val_metrics["mape"])
    assert card["programs"]["train"] == len(data[1].train) and "xeon-icelake" in card["validation_by_device"]


def test_same_seed_same_figures_other_seed_others(data, tmp_path):
    first, again, other = (run(data, tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert_equal(first.val_metrics, again.val_metrics)
    losses = [[row["train_loss"] for row in result.history] for result in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]


def test_killed_run_continues_and_ends_like_an_uninterrupted_one(data, tmp_path, monkeypatch):
    whole = run(data, tmp_path / "whole")
    step = LatencyModule.training_step

    def dies(self, batch, batch_idx):
        if self.current_epoch == 1 and batch_idx == 2:
            raise KeyboardInterrupt
        return step(self, batch, batch_idx)

    monkeypatch.setattr(LatencyModule, "training_step", dies)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(data, tmp_path / "killed")
    monkeypatch.setattr(LatencyModule, "training_step", step)
    resumed = run(data, tmp_path / "killed")
    assert_equal(resumed.val_metrics, whole.val_metrics)
    assert [r["epoch"] for r in resumed.history] == [0, 1, 2]
    assert [r["val_mape"] for r in resumed.history] == [r["val_mape"] for r in whole.history]


def test_finished_run_is_not_trained_again(data, tmp_path, monkeypatch):
    first = run(data, tmp_path)
    monkeypatch.setattr(LatencyModule, "training_step", lambda *_: pytest.fail("trained again"))
    assert_equal(run(data, tmp_path).val_metrics, first.val_metrics)


def test_another_run_in_the_same_folder_is_refused(data, tmp_path):
    run(data, tmp_path)
    with pytest.raises(CdmppError, match="another config"):
        run(data, tmp_path, config(lr=1e-4))
    with pytest.raises(CdmppError, match="another seed"):
        run(data, tmp_path, seed=5)


def test_checkpoints_hold_tensors_and_plain_numbers_only(data, tmp_path):
    run(data, tmp_path)
    for path in (tmp_path / "member-0" / "checkpoints").glob("*.ckpt"):
        assert torch.load(path, weights_only=True)["epoch"] >= 0


def test_the_test_part_is_never_looked_at(data, tmp_path):
    dataset, split = data
    spoiled = dataset.latency_s.copy()
    spoiled[split.test] = np.nan
    result = run((replace(dataset, latency_s=spoiled), split), tmp_path / "a")
    assert_equal(result.val_metrics, run(data, tmp_path / "b").val_metrics)


def test_members_are_averaged_in_the_logarithm(data, tmp_path):
    result = run(data, tmp_path, config(members=2))
    prediction = result.predictor.predict(data[0].asts)
    assert len(result.predictor.models) == 2 and (prediction.member_spread > 0).any()
    assert {row["member"] for row in result.history} == {0, 1}


def test_the_published_model_trains_by_the_same_call(data, tmp_path):
    loss = {"log_weight": 0.0, "relative_weight": 0.0, "label_mse_weight": 1000.0, "label_relative_weight": 1.0}
    chosen = config(SMALL_REFERENCE, loss, schedule="cyclic", cycle_steps=20, length_groups=1, ema=0.0)
    result = run(data, tmp_path, chosen)
    assert np.isfinite(result.val_metrics["mape"])
    assert len(result.predictor.models[0].config.leaf_counts) > 1


def test_cmd_uses_unlabelled_programs_apart_from_test(data, tmp_path):
    dataset, split = data
    pool = split.validation[:20]
    chosen = config(loss={"cmd_weight": 0.1})
    with_cmd = run(data, tmp_path / "a", chosen, unlabelled=pool)
    assert with_cmd.history[0]["train_loss"] > run(data, tmp_path / "b").history[0]["train_loss"]
    with pytest.raises(DataError, match="test programs"):
        run(data, tmp_path / "c", chosen, unlabelled=split.test[:5])
    with pytest.raises(CdmppError, match="unlabelled"):
        run(data, tmp_path / "d", chosen)


def test_several_devices(tmp_path):
    names = ("xeon-icelake", "epyc-9005")
    dataset, split = toy_dataset(120, devices=names)
    sheets = {name: devices.get(name) for name in names}
    result = train(dataset, split, sheets, config(), tmp_path, 0, progress=False, accelerator="cpu")
    assert set(result.predictor.trained_on) == set(names)


@pytest.mark.parametrize("part", ["train", "validation"])
def test_empty_parts_are_refused(data, tmp_path, part):
    dataset, split = data
    empty = np.zeros(0, np.int64)
    with pytest.raises(DataError, match=part):
        run((dataset, replace(split, **{part: empty})), tmp_path)


def test_one_program_is_enough_to_run(data, tmp_path):
    dataset, _ = data
    split = Split("tiny", 0, np.array([0]), np.array([1]), np.array([2]))
    assert np.isfinite(run((dataset, split), tmp_path).val_metrics["mape"])


@pytest.mark.gpu
def test_on_a_gpu_in_bf16(tmp_path):
    dataset, split = toy_dataset(200)
    chosen = config(precision="bf16", length_groups=1)
    result = train(dataset, split, DEVICE, chosen, tmp_path, 0, progress=False, accelerator="gpu")
    assert np.isfinite(result.val_metrics["mape"])
