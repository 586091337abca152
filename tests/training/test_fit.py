"""Whole training runs, shrunk to seconds."""

from __future__ import annotations

import copy
import json
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_equal

from cdmpp.ast.table import AstTable
from cdmpp.data.batching import ProgramTensors
from cdmpp.data.splits import Split, make_split
from cdmpp.devices import sheets_of
from cdmpp.errors import CdmppError, DataError
from cdmpp.model.analytic import PARTS
from cdmpp.model.analytical_prior import AnalyticalPrior
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes.train import train
from cdmpp.training.config import Run, TrainConfig
from cdmpp.training.inputs import Replay
from cdmpp.training.lit import LatencyModule
from tests.model.test_models import SMALL, SMALL_REFERENCE
from tests.toy_data import toy_dataset


def config(model=SMALL, loss=None, **trainer):
    return TrainConfig.from_dict(
        {"model": model, "loss": loss or {}, "trainer": {"epochs": 3, "batch_size": 32, "lr": 3e-3, **trainer}}
    )


@pytest.fixture(scope="module")
def data():
    return toy_dataset(200)


def quiet(out, seed=0, accelerator="cpu"):
    return Run(out, seed, progress=False, accelerator=accelerator)


def run(data, out, chosen=None, seed=0):
    return train(*data, chosen or config(), quiet(out, seed))


def test_learns_and_leaves_a_model_folder(data, tmp_path):
    result = run(data, tmp_path, config(epochs=30))
    assert {p.name for p in result.model_dir.iterdir()} == {"model.safetensors", "config.json", "card.json"}
    assert len(result.history) == 30
    assert result.history[-1]["train_loss"] < 0.7 * result.history[0]["train_loss"]
    constant = np.median(data[0].latency_s[data[1].train])
    truth = data[0].latency_s[data[1].validation]
    assert result.val_metrics["mape"] < 100 * np.mean(np.abs(constant - truth) / truth)
    card = json.loads((result.model_dir / "card.json").read_text())
    assert card["validation"]["mape"] == pytest.approx(result.val_metrics["mape"])
    assert card["programs"]["train"] == len(data[1].train) and "xeon-icelake" in card["validation_by_device"]


def test_answers_are_scaled_for_the_least_error_of_the_validation_part(data, tmp_path):
    result = run(data, tmp_path)
    rows, predictor = data[1].validation, result.predictor
    truth, predicted = data[0].latency_s[rows], predictor.predict(data[0].asts.take(rows)).latency_s
    assert predictor.log_shift != 0 and np.abs(predicted / truth - 1).mean() * 100 == pytest.approx(
        result.val_metrics["mape"], rel=1e-4
    )
    for factor in (0.97, 1.03, np.exp(-predictor.log_shift)):
        assert np.abs(factor * predicted / truth - 1).mean() >= np.abs(predicted / truth - 1).mean() - 1e-9


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
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(data, tmp_path / "killed")
    assert signal.getsignal(signal.SIGINT) == on_ctrl_c, "this process and its children must hear the next Ctrl-C"
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
    chosen = config(loss={"domain": "cmd", "domain_weight": 0.1})
    by_pool = replace(split, validation=split.validation[20:], pool=split.validation[:20])
    with_cmd = run((dataset, by_pool), tmp_path / "a", chosen)
    assert with_cmd.history[0]["train_loss"] > run(data, tmp_path / "b").history[0]["train_loss"]
    with pytest.raises(DataError, match="test programs"):
        run((dataset, replace(split, pool=split.test[:5])), tmp_path / "c", chosen)
    with pytest.raises(CdmppError, match="unlabelled"):
        run(data, tmp_path / "d", chosen)


def test_labels_of_the_unlabelled_programs_are_never_used(data, tmp_path):
    dataset, split = data
    split = replace(split, pool=split.test[:30], test=split.test[30:])
    chosen = config(loss={"domain": "cmd"}, epochs=1)
    result = run((dataset, split), tmp_path / "a", chosen)
    unknown = dataset.latency_s.copy()
    unknown[split.pool] = np.nan
    again = run((replace(dataset, latency_s=unknown), split), tmp_path / "b", chosen)
    assert_equal(result.val_metrics, again.val_metrics)


def test_several_devices(tmp_path):
    names = ("xeon-icelake", "epyc-9005")
    dataset, split = toy_dataset(120, devices=names)
    result = train(dataset, split, config(), quiet(tmp_path))
    assert set(result.predictor.trained_on) == set(names)


def test_a_device_of_the_pool_or_test_alone_is_not_trained_on(tmp_path):
    names = ("xeon-icelake", "epyc-9005")
    dataset, _ = toy_dataset(160, devices=names)
    split = make_split(dataset, "by_device", 0, target="epyc-9005")
    result = train(dataset, split, config(loss={"domain": "cmd"}), quiet(tmp_path))
    assert set(result.predictor.trained_on) == {"xeon-icelake"}
    assert not result.predictor.predict(dataset.asts.take(split.test), "epyc-9005").trained_on_device


def test_cpu_and_gpu_programs_together_keep_their_own_analytic_factors(tmp_path):
    cpu, _ = toy_dataset(80)
    gpu, _ = toy_dataset(80, seed=1, devices=("a100",), kind="gpu")
    both = replace(
        cpu,
        **{n: np.concatenate([getattr(cpu, n), getattr(gpu, n)]) for n in ("task_ids", "devices", "latency_s", "spread",
                                                                           "op_classes")},
        record_ids=np.array([f"r{i}" for i in range(160)]),
        asts=AstTable.concat([cpu.asts, gpu.asts]),
    )  # fmt: skip
    programs = ProgramTensors.build(both.asts, sheets_of(both.devices), both.devices, both.latency_s)
    together, alone = AnalyticalPrior(), AnalyticalPrior()
    together.fit(programs, np.arange(160))
    alone.fit(programs, np.arange(80))
    cpu_parts = [i for i, name in enumerate(PARTS) if name.startswith("cpu_")]
    # Not exactly: the ridge weighs against the mean over all programs, and half of these say nothing of CPU parts.
    assert torch.allclose(together.log_factor[cpu_parts], alone.log_factor[cpu_parts], atol=0.35)
    split = make_split(both, "by_task", 0)
    result = train(both, split, config(), quiet(tmp_path))
    assert np.isfinite(result.val_metrics["mape"]) and set(result.predictor.trained_on) == {"xeon-icelake", "a100"}


PAIR = ("xeon-icelake", "epyc-9005")


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A model of one device, and the split that holds the other one's programs."""
    dataset, _ = toy_dataset(240, devices=PAIR)
    split = make_split(dataset, "by_device", 0, target="epyc-9005")
    folder = tmp_path_factory.mktemp("start")
    source = train(dataset, split, config(epochs=6), quiet(folder))
    return dataset, split, source.predictor


class TestContinuing:
    """``start`` and ``replay``."""

    def go_on(self, started, out, **trainer):
        dataset, split, predictor = started
        tuned = replace(split, train=split.pool)
        chosen = config(validate_every=99, **trainer)
        return train(dataset, tuned, chosen, quiet(out), predictor, Replay(split.train, 0.5))

    def test_learns_the_new_device_from_where_it_stood(self, started, tmp_path):
        dataset, split, before = started
        weights = {k: v.clone() for k, v in before.models[0].state_dict().items()}
        after = self.go_on(started, tmp_path, epochs=12)
        assert all(torch.equal(v, weights[k]) for k, v in before.models[0].state_dict().items()), "a copy is trained"
        for name in ("leaf_scaler.shift", "kernel_scaler.factor", "prior.log_factor", "log_mean"):
            assert torch.equal(after.predictor.models[0].state_dict()[name], weights[name])
        assert set(after.predictor.trained_on) == set(PAIR)
        errors = [
            np.abs(np.log(predict_rows(predictor, dataset, split.test) / dataset.latency_s[split.test])).mean()
            for predictor in (before, after.predictor)
        ]
        assert errors[1] < errors[0]

    def test_the_first_step_starts_from_the_same_function(self, started, tmp_path):
        dataset, split, before = started
        after = self.go_on(started, tmp_path, epochs=1, lr=1e-12)
        for rows in (split.validation, split.test):
            assert_allclose(
                predict_rows(after.predictor, dataset, rows), predict_rows(before, dataset, rows), rtol=1e-5
            )

    def test_another_start_in_the_same_folder_is_refused(self, started, tmp_path):
        dataset, split, predictor = started
        self.go_on(started, tmp_path, epochs=1)
        other = copy.deepcopy(predictor)
        with torch.no_grad():
            other.models[0].out.weight.add_(1)
        with pytest.raises(CdmppError, match="another programs"):
            self.go_on((dataset, split, other), tmp_path, epochs=1)

    def test_replayed_programs_of_test_or_validation_are_refused(self, started, tmp_path):
        dataset, split, predictor = started
        for rows in (split.test, split.validation):
            with pytest.raises(DataError, match="replayed"):
                train(dataset, split, config(), quiet(tmp_path), predictor, Replay(rows))


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
    result = train(dataset, split, chosen, quiet(tmp_path, accelerator="gpu"))
    assert np.isfinite(result.val_metrics["mape"])
