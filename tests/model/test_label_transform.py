from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.preprocessing import PowerTransformer

from cdmpp.model.config import LABEL_TRANSFORMS
from cdmpp.model.label_transform import LabelTransform


@pytest.fixture
def log_latency():
    return torch.from_numpy(np.random.default_rng(0).normal(np.log(5e-5), 1.3, 500))


@pytest.mark.parametrize("kind", LABEL_TRANSFORMS)
def test_inverse_undoes_forward(kind, log_latency):
    transform = LabelTransform(kind).double()
    transform.fit(log_latency)
    labels = transform(log_latency)
    assert labels.mean().item() == pytest.approx(0, abs=1e-6) and labels.std().item() == pytest.approx(1, abs=0.01)
    assert torch.allclose(transform.inverse(labels), log_latency, atol=1e-8)


@pytest.mark.parametrize("kind", ["box-cox", "yeo-johnson"])
def test_agrees_with_sklearn(kind, log_latency):
    transform = LabelTransform(kind).double()
    transform.fit(log_latency)
    microseconds = np.exp(log_latency.numpy()) * 1e6
    expected = PowerTransformer(method=kind, standardize=True).fit_transform(microseconds[:, None])[:, 0]
    assert np.allclose(transform(log_latency).numpy(), expected, atol=1e-6)


def test_labels_beyond_the_pole_stay_finite():
    transform = LabelTransform("box-cox")
    transform.power.fill_(-0.3)
    assert torch.isfinite(transform.inverse(torch.tensor([-1e6, 0.0, 1e6]))).all()


def test_statistics_travel_in_the_state():
    assert set(LabelTransform("box-cox").state_dict()) == {"power", "mean", "scale"}
