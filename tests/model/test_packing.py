"""Tokens side by side: what is padded has no part in an answer, and tables of priors say what the priors say."""

from __future__ import annotations

import numpy as np
import torch

from cdmpp.data.batching import ProgramTensors
from cdmpp.devices import sheets_of
from cdmpp.model.build import build_for
from cdmpp.model.config import model_config
from cdmpp.model.packing import Packing, mean_by
from cdmpp.model.prior_table import PriorTable
from tests.model.test_models import SMALL
from tests.toy_data import toy_dataset


def tensors(n=60):
    dataset, _ = toy_dataset(n)
    return ProgramTensors.build(dataset.asts, sheets_of(dataset.devices), dataset.devices, dataset.latency_s)


def test_tokens_go_where_they_come_from():
    programs = tensors()
    batch = programs.batch(np.array([0, 5, 9, 20]))
    packing = Packing.of(batch)
    n = int(batch.kernel_mask.sum() + batch.leaf_mask.sum())
    x = torch.randn(n, 3)
    spread = packing.padded(x)
    mask = torch.cat([batch.kernel_mask, batch.leaf_mask], dim=1)
    assert torch.equal(packing.packed(spread), x) and not spread[~mask].any()
    kernels = batch.kernels[batch.kernel_mask]
    assert torch.equal(kernels, batch.kernels[packing.program_of_kernel, packing.ordinal_of_kernel])
    assert torch.equal(packing.program_of_kernel[packing.kernel_of_leaf], packing.program_of_leaf)
    assert torch.equal(packing.ordinal_of_kernel[packing.kernel_of_leaf], packing.ordinal_of_leaf)
    assert torch.equal(batch.leaf_positions[batch.leaf_mask], packing.leaf_positions)


def test_mean_of_each_owner():
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 20.0]])
    found = mean_by(rows, torch.tensor([1, 1, 0]), 3)
    assert found.tolist() == [[10.0, 20.0], [2.0, 3.0], [0.0, 0.0]]


def test_the_table_says_what_the_priors_say():
    programs = tensors()
    model = build_for(model_config(SMALL), programs, np.arange(40)).eval()
    table = PriorTable.build(model, programs)
    for rows in (np.array([3]), np.arange(60)[::-1].copy(), np.array([7, 7, 1])):
        batch = programs.batch(rows)
        found, expected = table.take(batch), model.prior_columns(batch)
        mask = batch.kernel_mask
        assert torch.equal(found.kernels[mask], expected.kernels[mask]) and torch.equal(found.code, expected.code)
        assert torch.equal(found.log_s[mask], expected.log_s[mask])
        assert torch.equal(model(batch, found).log_latency, model(batch).log_latency)


def test_the_company_of_a_program_changes_nothing():
    programs = tensors()
    model = build_for(model_config(SMALL), programs, np.arange(40)).eval()
    together = model(programs.batch(np.arange(60)))
    for row in range(0, 60, 7):
        alone = model(programs.batch(np.array([row])))
        for one, all_of in zip(alone, together, strict=True):
            torch.testing.assert_close(one[0], all_of[row], rtol=1e-5, atol=1e-5)
