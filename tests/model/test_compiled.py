"""The compiled library answers as the torch module does, whatever the model, the kind of device and the company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import cdmpp
from cdmpp.data.batching import ProgramTensors, ordered_batches
from cdmpp.devices import get, sheets_of
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.model.build import build_for
from cdmpp.model.compiled import compiled
from cdmpp.model.config import model_config
from cdmpp.predict.model_folder import pretrained_names
from tests.model.test_models import SHAPES, SMALL
from tests.toy_data import toy_dataset

CLOSE = {"rtol": 1e-5, "atol": 2e-5}
"""Both compute in single precision, whose logarithms of microseconds are a millionth apart."""


def toy_tensors(n=80):
    dataset, _ = toy_dataset(n)
    return ProgramTensors.build(dataset.asts, sheets_of(dataset.devices), dataset.devices, dataset.latency_s)


@torch.no_grad()
def check(model, programs):
    rows = np.arange(len(programs))[::-1].copy()
    found = compiled(model).answers(programs, rows)
    for batch in ordered_batches(programs, rows):
        own, expected = len(rows) - 1 - batch.rows.numpy(), model(batch)
        np.testing.assert_allclose(found.log_latency[own], expected.log_latency.double(), **CLOSE)
        np.testing.assert_allclose(found.hidden[own], expected.hidden, rtol=1e-3, atol=1e-4)
        for place, row in zip(own, range(len(batch.rows)), strict=True):
            leaves, kernels = batch.leaves[row][batch.leaf_mask[row]], batch.kernels[row][batch.kernel_mask[row]]
            for told, of in ((found.largest, "amax"), (found.smallest, "amin")):
                expected_row = torch.cat([getattr(leaves, of)(0), getattr(kernels, of)(0)])
                np.testing.assert_array_equal(told[place], expected_row)


@pytest.mark.parametrize("change", SHAPES, ids=str)
def test_untrained_models_of_any_shape(change):
    torch.manual_seed(1)
    programs = toy_tensors()
    model = build_for(model_config({**SMALL, **change}), programs, np.arange(50)).eval().requires_grad_(False)
    for parameter in model.parameters():  # no weight stays zero, whose place nobody would notice
        parameter += 0.05 * torch.randn_like(parameter)
    check(model, programs)


@pytest.mark.parametrize("name", [name for name in pretrained_names() if "torch" not in name])
def test_shipped_models(name):
    predictor = cdmpp.load_model(name)
    for device, sheet in list(predictor.trained_on.items())[:3]:
        folder = Path(__file__).parents[2] / "datasets" / device
        if not folder.is_dir():
            continue
        from cdmpp.data.loading import load_dataset

        asts = load_dataset(folder, device, progress=False).asts.take(np.arange(0, 600, 10))
        for one in (asts, asts.with_codes(None)):
            programs = ProgramTensors.build(one, {device: sheet}, [device] * len(one))
            for model in predictor.models:
                check(model, programs)


def test_a_changed_weight_is_noticed():
    programs = toy_tensors(20)
    model = build_for(model_config(SMALL), programs, np.arange(20)).eval().requires_grad_(False)
    before, same = compiled(model), compiled(model)
    assert before is same
    model.out.bias += 1.0
    after = compiled(model)
    rows = np.arange(20)
    moved = after.answers(programs, rows).log_latency - before.answers(programs, rows).log_latency
    np.testing.assert_allclose(moved, float(model.log_scale), rtol=1e-4)


def test_threads_and_company_change_nothing():
    programs = toy_tensors(80)
    model = build_for(model_config(SMALL), programs, np.arange(80)).eval().requires_grad_(False)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        together = compiled(model).answers(programs, np.arange(80))
        torch.set_num_threads(1)
        for row in (0, 17, 79):
            alone = compiled(model).answers(programs, np.array([row]))
            assert alone.log_latency[0] == pytest.approx(together.log_latency[row], abs=1e-6)
    finally:
        torch.set_num_threads(threads)


def test_a_table_is_answered_as_its_tensors_are():
    dataset, _ = toy_dataset(40)
    codes = np.random.default_rng(0).random((40, CODE_WIDTH), np.float32)
    codes[::3] = np.nan
    programs = toy_tensors(40)
    model = build_for(model_config(SMALL), programs, np.arange(40)).eval().requires_grad_(False)
    for asts in (dataset.asts.with_codes(None), dataset.asts.with_codes(codes)):
        for device in (get("epyc-genoa"), get("xeon-icelake")):
            tensors = ProgramTensors.build(asts, {device.name: device}, [device.name] * 40)
            expected, found = compiled(model).answers(tensors, np.arange(40)), compiled(model).answers_on(device, asts)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)
