from __future__ import annotations

import torch

from cdmpp.model.feature_scaler import FeatureScaler


def test_standardises_clips_and_silences_constant_columns():
    rows = torch.tensor([[0.0, 5.0], [2.0, 5.0]])
    scaler = FeatureScaler(2, clip=3.0)
    scaler.fit(rows)
    assert scaler(rows).tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert scaler(torch.tensor([[1e6, 1e6]])).tolist() == [[3.0, 0.0]]


def test_min_max():
    scaler = FeatureScaler(1)
    scaler.fit(torch.tensor([[2.0], [6.0]]), kind="minmax")
    assert scaler(torch.tensor([[3.0]])).item() == 0.25
