"""How unsure a model is of programs that nobody has measured: passes in which each row goes without some columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import cdmpp
from cdmpp import devices
from cdmpp.data.sources import load_device
from cdmpp.recipes.candidates import _silence, candidates


@pytest.mark.parametrize("shape", [(40, 50), (8, 5, 50)])
def test_silenced_inputs_keep_their_shape_and_a_tenth_is_zero(shape):
    torch.manual_seed(0)
    silenced = _silence(nn.Identity(), (), torch.ones(shape))
    assert silenced.shape == shape
    assert (silenced == 0).float().mean() == pytest.approx(0.1, abs=0.04)
    if len(shape) == 3:  # all rows of a program go without the same ones
        assert (silenced == silenced[:, :1]).all()


def test_uncertainty_of_known_programs_is_small_and_the_same_with_a_seed():
    records = load_device("xeon-icelake")
    rows = np.arange(0, len(records), 250)
    model = cdmpp.load_model("xeon-icelake")
    found = [candidates(model, records, rows, devices.get("xeon-icelake"), seed) for seed in (0, 0)]
    assert np.array_equal(found[0].uncertainty, found[1].uncertainty)
    assert found[0].uncertainty.shape == (len(rows),)
    assert (found[0].uncertainty > 0).all() and np.median(found[0].uncertainty) < 0.5
