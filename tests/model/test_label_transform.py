from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.preprocessing import PowerTransformer

from cdmpp.errors import CdmppError
from cdmpp.model.label_transform import LABEL_TRANSFORMS, LabelTransform


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


def test_unknown_kind_is_refused():
    with pytest.raises(CdmppError, match="box-cox"):
        LabelTransform("sqrt")


def test_quantiles_make_any_labels_normal_and_go_on_beyond_them():
    log_latency = torch.from_numpy(np.log(np.random.default_rng(0).exponential(1e-4, 4000))) ** 3 / 100
    transform = LabelTransform("quantile").double()
    transform.fit(log_latency)
    labels = np.sort(transform(log_latency).numpy())
    expected = torch.special.ndtri((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000).numpy()
    assert np.abs(labels[100:-100] - expected[100:-100]).max() < 0.1
    beyond = torch.tensor([-5.0, 5.0], dtype=torch.float64) + torch.stack([log_latency.min(), log_latency.max()])
    assert torch.allclose(transform.inverse(transform(beyond)), beyond)


def test_quantiles_of_equal_labels_keep_a_slope():
    transform = LabelTransform("quantile")
    transform.fit(torch.full((50,), -9.0))
    assert torch.isfinite(transform(torch.tensor([-10.0, -9.0, -8.0]))).all()
    assert torch.isfinite(transform.inverse(torch.tensor([-2.0, 0.0, 2.0]))).all()
