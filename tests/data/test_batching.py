from __future__ import annotations

import numpy as np
import pytest
import torch

from cdmpp import devices
from cdmpp.data.batching import ProgramTensors, TrainingBatches, ordered_batches
from cdmpp.errors import DataError
from tests.toy_data import toy_dataset


@pytest.fixture(scope="module")
def data():
    dataset, split = toy_dataset(60)
    device = devices.get("xeon-icelake")
    return dataset, split, ProgramTensors.build(dataset.asts, {device.name: device}, dataset.devices, dataset.latency_s)


def test_batch_holds_each_program_and_zeros_elsewhere(data):
    dataset, _, programs = data
    rows = np.array([7, 3, 41])
    batch = programs.batch(rows)
    for place, row in enumerate(rows):
        ast = dataset.asts[row]
        assert batch.leaf_mask[place].sum() == ast.n_leaf and batch.kernel_mask[place].sum() == ast.n_kernel
        assert np.array_equal(batch.leaves[place, : ast.n_leaf].numpy(), ast.leaf_features)
        assert np.array_equal(batch.kernels[place, : ast.n_kernel].numpy(), ast.kernel_features)
        assert np.array_equal(batch.leaf_positions[place, : ast.n_leaf].numpy(), ast.leaf_positions)
        assert np.array_equal(batch.leaf_kernels[place, : ast.n_leaf].numpy(), ast.leaf_kernels)
        assert batch.leaves[place, ast.n_leaf :].abs().sum() == 0
        assert batch.log_latency[place].item() == pytest.approx(np.log(dataset.latency_s[row]), rel=1e-6)


def test_an_epoch_visits_every_row_once_whatever_the_groups(data):
    _, split, programs = data
    for groups in (1, 3, 100):
        seen = [g.rows for step in TrainingBatches(programs, split.train, 16, 5, 2, groups) for g in step]
        assert sorted(torch.cat(seen).tolist()) == split.train.tolist()


def test_batches_depend_on_seed_and_epoch_only(data):
    _, split, programs = data

    def first(seed, epoch):
        return next(iter(TrainingBatches(programs, split.train, 16, seed, epoch)))[0].rows.tolist()

    assert first(0, 0) == first(0, 0)
    assert first(0, 0) != first(0, 1) and first(0, 0) != first(1, 0)


def test_grouping_by_length_keeps_the_random_batch(data):
    _, split, programs = data
    plain = next(iter(TrainingBatches(programs, split.train, 16, 0, 0, 1)))[0].rows
    grouped = torch.cat([g.rows for g in next(iter(TrainingBatches(programs, split.train, 16, 0, 0, 4)))])
    assert set(plain.tolist()) == set(grouped.tolist())


def test_ordered_batches_cover_all_within_the_token_budget(data):
    _, _, programs = data
    batches = list(ordered_batches(programs, np.arange(60), max_tokens=64))
    assert sorted(torch.cat([b.rows for b in batches]).tolist()) == list(range(60))
    assert all(len(b.rows) == 1 or b.leaf_mask.numel() + b.kernel_mask.numel() <= 64 for b in batches)


@pytest.mark.parametrize("bad", [0.0, -1e-6, np.nan, np.inf])
def test_impossible_latencies_are_refused(data, bad):
    dataset, _, _ = data
    latency = dataset.latency_s.copy()
    latency[5] = bad
    device = devices.get("xeon-icelake")
    with pytest.raises(DataError, match="positive finite"):
        ProgramTensors.build(dataset.asts, {device.name: device}, dataset.devices, latency)


def test_a_device_that_is_not_described_is_named(data):
    dataset, _, _ = data
    device = devices.get("a100")
    with pytest.raises(DataError, match="xeon-icelake"):
        ProgramTensors.build(dataset.asts, {device.name: device}, dataset.devices)
