"""What every model must do; a new model joins by one line in MODELS."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cdmpp import devices
from cdmpp.data.batching import ProgramTensors
from cdmpp.errors import CdmppError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.model.build import build_for, build_model
from cdmpp.model.config import ReferenceConfig, model_config
from cdmpp.model.reference import config_for, serial_encoding
from tests.toy_data import toy_dataset

SMALL = {"width": 32, "layers": 2, "heads": 4, "feedforward": 64, "hidden": 32}
SHAPES = [
    {}, {"layers": 0}, {"bins": 0}, {"prior": False}, {"width": 18, "heads": 3, "hidden": 13, "feedforward": 7},
    {"width": 128, "heads": 4},
]  # fmt: skip
"""What of it the compiled library is held to."""
SMALL_REFERENCE = {
    "name": "reference",
    "layers": 1,
    "feedforward": 32,
    "input_layer": 24,
    "embedded_layers": [24],
    "embedding": 8,
    "device_layers": [8],
    "regression_layers": [16, 16],
    "min_programs": 4,
}
MODELS = {
    "default": SMALL,
    "box-cox": {**SMALL, "label": "box-cox"},
    "yeo-johnson": {**SMALL, "label": "yeo-johnson"},
    "without prior": {**SMALL, "prior": False},
    "no bins, no attention": {**SMALL, "bins": 0, "layers": 0},
    "reference": SMALL_REFERENCE,
}


@pytest.fixture(scope="module")
def programs():
    dataset, _ = toy_dataset(80, devices=("xeon-icelake", "epyc-9005"))
    sheets = {name: devices.get(name) for name in ("xeon-icelake", "epyc-9005")}
    return ProgramTensors.build(dataset.asts, sheets, dataset.devices, dataset.latency_s)


@pytest.fixture(params=MODELS)
def model(request, programs):
    torch.manual_seed(0)
    return build_for(model_config(MODELS[request.param]), programs, np.arange(60)).eval()


def test_any_leaf_count_alone_or_in_a_batch_is_the_same(model, programs):
    rows = np.arange(60, 80)
    together = model(programs.batch(rows)).log_latency
    alone = torch.cat([model(programs.batch(rows[i : i + 1])).log_latency for i in range(len(rows))])
    assert torch.isfinite(together).all()
    assert torch.allclose(together, alone, atol=1e-5)


def test_label_is_the_transform_of_the_latency(model, programs):
    output = model(programs.batch(np.arange(20)))
    assert output.hidden.ndim == 2
    assert torch.allclose(model.label_transform(output.log_latency), output.label, atol=1e-3)


def test_gradients_reach_every_parameter(model, programs):
    model.train()
    model(programs.batch(np.arange(60))).log_latency.sum().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert not [name for name in silent if not name.startswith("flatten.")]


def test_state_restores_the_model(model, programs):
    widths = programs.leaf_features.shape[1], programs.kernel_features.shape[1], programs.device_vectors.shape[1]
    copy = build_model(model.config, *widths).eval()
    copy.load_state_dict(model.state_dict())
    batch = programs.batch(np.arange(10))
    assert torch.equal(copy(batch).log_latency, model(batch).log_latency)


def test_statistics_come_from_the_training_rows_only(programs):
    config = model_config(SMALL)
    torch.manual_seed(0)
    one = build_for(config, programs, np.arange(40))
    changed = programs.leaf_features.clone()
    changed[programs.leaf_starts[40] :] += 100.0
    from dataclasses import replace

    torch.manual_seed(0)
    other = build_for(config, replace(programs, leaf_features=changed), np.arange(40))
    assert torch.equal(one.leaf_scaler.shift, other.leaf_scaler.shift)
    assert torch.equal(one.label_transform.mean, other.label_transform.mean)


def test_an_untrained_model_with_a_prior_has_the_scale_of_the_labels(programs):
    torch.manual_seed(0)
    model = build_for(model_config(SMALL), programs, np.arange(80)).eval()
    batch = programs.batch(np.arange(80))
    with torch.no_grad():
        assert abs((model(batch).log_latency - batch.log_latency).mean()) < 0.5


def test_the_device_changes_the_answer(programs):
    model = build_for(model_config(SMALL), programs, np.arange(80)).eval()
    batch = programs.batch(np.arange(8))
    other = batch._replace(device_vectors=programs.device_vectors[(programs.device_index[:8] + 1) % 2])
    assert not torch.allclose(model(batch).hidden, model(other).hidden)


def test_reference_shares_the_nearest_leaf_count(programs):
    config = config_for(ReferenceConfig(min_programs=5), programs, np.arange(60))
    counts, times = np.unique(programs.host_leaf_counts[:60], return_counts=True)
    assert config.leaf_counts == tuple(counts[times >= 5].tolist())
    assert config.use_device


def test_reference_encoding_by_hand():
    encoding = serial_encoding(torch.tensor([3]), 4)[0]
    expected = [np.sin(3.0), np.cos(3 / 10000**0.5), np.sin(3 / 10000**1.0), np.cos(3 / 10000**1.5)]
    assert encoding.tolist() == pytest.approx(expected, abs=1e-6)


def test_a_setting_that_nothing_reads_is_refused():
    with pytest.raises(CdmppError, match=r"model.widht; did you mean width"):
        model_config({"widht": 64})
    with pytest.raises(CdmppError, match="model.width is .64.: expected a whole number from 1 to 8192"):
        model_config({"width": "64"})
    with pytest.raises(CdmppError, match="divisible by model.heads=3"):
        model_config({"width": 64, "heads": 3})


def coded(dataset, share=0.5):
    """The toy programs with code vectors, of which a share is missing."""
    rng = np.random.default_rng(1)
    codes = rng.uniform(0, 20, (len(dataset), CODE_WIDTH)).astype(np.float32)
    codes[rng.random(len(dataset)) < share] = np.nan
    return dataset.asts.with_codes(codes)


def test_code_vectors_are_read_where_they_are_and_missing_ones_do_no_harm():
    dataset, _ = toy_dataset(80)
    sheets, names = {"xeon-icelake": devices.get("xeon-icelake")}, dataset.devices
    with_codes = ProgramTensors.build(coded(dataset), sheets, names, dataset.latency_s)
    without = ProgramTensors.build(dataset.asts, sheets, names, dataset.latency_s)
    torch.manual_seed(0)
    model = build_for(model_config(SMALL), with_codes, np.arange(60)).eval()
    torch.nn.init.normal_(model.out.weight)
    rows = np.arange(60, 80)
    read, blind = model(with_codes.batch(rows)).log_latency, model(without.batch(rows)).log_latency
    has_code = with_codes.batch(rows).codes[:, 0] > 0
    assert 0 < has_code.sum() < 20
    assert torch.allclose(read[~has_code], blind[~has_code], atol=1e-5)
    assert (read[has_code] - blind[has_code]).abs().min() > 1e-6


def test_a_model_of_data_without_code_vectors_has_no_inputs_for_them(programs):
    assert build_for(model_config(SMALL), programs, np.arange(60)).config.code is False


def test_hidden_code_vectors_look_like_missing_ones():
    dataset, _ = toy_dataset(80)
    sheets = {"xeon-icelake": devices.get("xeon-icelake")}
    tensors = ProgramTensors.build(coded(dataset, 0.0), sheets, dataset.devices, dataset.latency_s)
    model = build_for(model_config({**SMALL, "code_dropout": 1.0}), tensors, np.arange(60))
    batch = tensors.batch(np.arange(60, 80))
    hidden = model.train()(batch).log_latency
    missing = model.eval()(batch._replace(codes=torch.zeros_like(batch.codes))).log_latency
    assert torch.allclose(hidden, missing, atol=1e-5)
