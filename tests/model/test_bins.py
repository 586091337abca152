"""Quantile bins: places by hand, centred on the training rows, finite for columns without spread."""

from __future__ import annotations

import torch

from cdmpp.model.bins import QuantileBins


def test_places_by_hand():
    bins = QuantileBins(1, 2)
    bins.fit(torch.tensor([[0.0], [1.0], [2.0], [4.0], [6.0]]))  # edges 0, 2, 6
    places = bins(torch.tensor([[0.0], [1.0], [2.0], [4.0], [9.0], [-5.0]])) + bins.mean.flatten()
    expected = torch.tensor([[0, 0], [0.5, 0], [1, 0], [1, 0.5], [1, 1], [0, 0]])
    torch.testing.assert_close(places, expected)


def test_means_are_those_of_all_columns_at_once_to_the_last_bit():
    rows = torch.randn(3000, 215, generator=torch.Generator().manual_seed(0)).exp()
    bins = QuantileBins(215, 8)
    bins.fit(rows)
    assert torch.equal(bins.mean, bins._places(rows).mean(0))


def test_centred_on_the_training_rows_and_in_column_order():
    rows = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.1])
    bins = QuantileBins(3, 4)
    bins.fit(rows)
    out = bins(rows)
    assert out.shape == (1000, 12)
    torch.testing.assert_close(out.mean(0), torch.zeros(12), atol=1e-5, rtol=0)
    # Only the entries of a column that moves change.
    moved = rows.clone()
    moved[:, 1] += 1
    changed = (bins(moved) - out).abs().amax(0) > 0
    assert changed.tolist() == [False] * 4 + [True] * 4 + [False] * 4


def test_column_without_spread_is_silent_and_finite():
    bins = QuantileBins(1, 8)
    bins.fit(torch.zeros(50, 1))
    assert torch.equal(bins(torch.zeros(5, 1)), torch.zeros(5, 8))
    assert torch.isfinite(bins(torch.full((1, 1), 1e9))).all()
