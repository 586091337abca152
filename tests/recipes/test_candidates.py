"""How unsure a model is of programs that nobody measured: passes in which each program goes without some columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from toy_data import toy_dataset

import cdmpp
from cdmpp import devices
from cdmpp.data.batching import ProgramTensors, ordered_batches
from cdmpp.data.sources import load_device
from cdmpp.model.feature_scaler import FeatureScaler
from cdmpp.model.packing import Packing
from cdmpp.recipes.candidates import _silenced, candidates

ROWS = np.arange(40)


class Scalers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.leaf_scaler, self.kernel_scaler = FeatureScaler(50, clip=10.0), FeatureScaler(50, clip=10.0)


def test_all_rows_of_a_program_go_without_the_same_tenth_of_the_columns():
    torch.manual_seed(0)
    dataset, _ = toy_dataset(40)
    sheet = devices.get("xeon-icelake")
    batch = next(iter(ordered_batches(ProgramTensors.build(dataset.asts, {sheet.name: sheet}, dataset.devices), ROWS)))
    packing, scalers = Packing.of(batch), Scalers()
    with _silenced(scalers, batch):
        for scaler, program_of in (
            (scalers.leaf_scaler, packing.program_of_leaf),
            (scalers.kernel_scaler, packing.program_of_kernel),
        ):
            silenced = scaler(torch.ones(len(program_of), 50)) == 0
            assert silenced.float().mean() == pytest.approx(0.1, abs=0.04)
            first = torch.stack([silenced[program_of == program][0] for program in range(len(ROWS))])
            assert (silenced == first[program_of]).all() and len(first.unique(dim=0)) > len(ROWS) // 2
        assert (scalers.leaf_scaler(torch.ones(len(ROWS), 7, 50)) == 0).float().std(1).max() == 0  # padded rows
    assert (scalers.leaf_scaler(torch.ones(3, 50)) == 1).all()


def test_uncertainty_of_known_programs_is_small_and_the_same_with_a_seed():
    records = load_device("xeon-icelake")
    rows = np.arange(0, len(records), 250)
    model = cdmpp.load_model("xeon-icelake")
    found = [candidates(model, records, rows, devices.get("xeon-icelake"), seed) for seed in (0, 0)]
    assert np.array_equal(found[0].uncertainty, found[1].uncertainty)
    assert found[0].uncertainty.shape == (len(rows),)
    assert (found[0].uncertainty > 0).all() and np.median(found[0].uncertainty) < 0.5
