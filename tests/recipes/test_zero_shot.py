"""A device that cannot have code vectors is learned for, asked, and judged without those of others."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from cdmpp import devices
from cdmpp.errors import NoRecordsError
from cdmpp.machine_code.code_features import CODE_WIDTH
from cdmpp.machine_code.compile import can_have_code
from cdmpp.model.build import build_for
from cdmpp.model.config import model_config
from cdmpp.predict.predictor import Predictor
from cdmpp.recipes import zero_shot
from cdmpp.recipes.compose import compose
from cdmpp.recipes.settings import RunSettings
from tests.model.test_models import SMALL
from tests.toy_data import toy_dataset

SOURCES = ("xeon-icelake", "xeon-icelake-avx2")


def coded(dataset):
    codes = np.random.default_rng(0).uniform(0, 6, (len(dataset), CODE_WIDTH)).astype(np.float32)
    return replace(dataset, asts=dataset.asts.with_codes(codes))


def test_only_x86_cpus_have_code_vectors():
    able = {device.name for device in devices.all_devices() if can_have_code(device.target)}
    assert {"xeon-icelake", "epyc-9005", "e5-2673v4"} <= able
    assert not able & {"graviton2", "a64fx", "a100", "mi210", "apple-m1-gpu"}


@pytest.mark.parametrize(("device", "with_codes"), [("graviton2", False), ("epyc-7452", True)])
def test_the_error_of_an_arm_device_is_told_without_machine_code(device, with_codes, monkeypatch, tmp_path):
    dataset, seen = coded(toy_dataset(120, devices=SOURCES)[0]), []

    def train(data, split, config, run):
        seen.append(data.asts.codes is not None)
        return SimpleNamespace(predictor=SimpleNamespace(card={}, save=lambda folder: None), model_dir=run.out)

    monkeypatch.setattr(zero_shot, "source_devices", lambda *_: list(SOURCES))
    monkeypatch.setattr(RunSettings, "load", lambda self: dataset)
    monkeypatch.setattr(zero_shot, "train", train)
    monkeypatch.setattr(zero_shot, "predict_rows", lambda _, data, rows: data.latency_s[rows])
    settings = RunSettings.from_dict(compose("config", [f"device={device}", "split=by_task", f"out={tmp_path}"]))
    sources = zero_shot.zero_shot_sources(settings, NoRecordsError("none here"))
    zero_shot.train_zero_shot(replace(settings, sources=sources), "none here")
    assert seen == [with_codes] * 3  # each source left out once, then all


def test_stored_code_vectors_do_not_answer_for_an_arm_device():
    dataset, _ = toy_dataset(60)
    both = coded(dataset)
    from cdmpp.data.batching import ProgramTensors

    sheet = {"xeon-icelake": devices.get("xeon-icelake")}
    tensors = ProgramTensors.build(both.asts, sheet, both.devices, both.latency_s)
    predictor = Predictor([build_for(model_config(SMALL), tensors, np.arange(60))], sheet)
    bare, with_code = (predictor.predict(data.asts, "graviton2").latency_s for data in (dataset, both))
    np.testing.assert_array_equal(bare, with_code)
    assert predictor.reads_code and not np.allclose(predictor.predict(both.asts).latency_s, bare)
