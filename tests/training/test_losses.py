from __future__ import annotations

import math

import pytest
import torch

from cdmpp.errors import CdmppError
from cdmpp.model.label_transform import LabelTransform
from cdmpp.model.output import Output
from cdmpp.training.config import LossConfig
from cdmpp.training.losses import central_moment_discrepancy, domain_distance, hybrid_loss, relative_error


def test_cmd_equals_the_value_worked_out_by_hand():
    # x = {0, 1}: mean 1/2, central moments 2..5 = 1/4, 0, 1/16, 0.
    # y = {0, 0, 3}: mean 1; moments: (1 + 1 + 4)/3 = 2, (-1 - 1 + 8)/3 = 2, (1 + 1 + 16)/3 = 6, (-1 - 1 + 32)/3 = 10.
    x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [0.0], [3.0]])
    assert central_moment_discrepancy(x, y).item() == pytest.approx(0.5 + 1.75 + 2 + 5.9375 + 10)
    by_span = 0.5 / 2 + 1.75 / 4 + 2 / 8 + 5.9375 / 16 + 10 / 32
    assert central_moment_discrepancy(x, y, span=2.0).item() == pytest.approx(by_span)
    assert central_moment_discrepancy(x, y, moments=2).item() == pytest.approx(2.25)


def test_cmd_takes_the_norm_over_columns():
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    y = torch.tensor([[3.0, 4.0], [4.0, 4.0]])
    assert central_moment_discrepancy(x, y).item() == pytest.approx(5.0)  # same shape around means 5 apart


def test_cmd_of_equal_samples_is_zero_and_has_a_gradient():
    x = torch.randn(16, 3, requires_grad=True)
    loss = central_moment_discrepancy(x, x.detach())
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6) and torch.isfinite(x.grad).all()


def test_the_distance_grows_with_the_domains_apart():
    torch.manual_seed(0)
    config, x = LossConfig(domain="cmd"), torch.randn(200, 4) / 4
    same, near, far = (
        domain_distance(config, x, torch.randn(200, 4) / 4 * scale + shift)
        for scale, shift in ((1, 0), (1.5, 0.3), (3, 1))
    )
    assert 0 <= same < near < far
    y = x.clone().requires_grad_(True)
    domain_distance(config, y, x.detach()).backward()
    assert torch.isfinite(y.grad).all()


def test_an_unknown_domain_loss_is_refused():
    with pytest.raises(CdmppError, match="none, cmd"):
        LossConfig(domain="cdm")


def test_relative_error_is_that_of_the_latency_and_stays_bounded():
    d = torch.log(torch.tensor([0.5, 1.0, 1.5]))
    assert relative_error(d).tolist() == pytest.approx([0.5, 0.0, 0.5], abs=1e-6)
    assert relative_error(torch.tensor([3.0]), limit=1.0).item() == pytest.approx(math.e * 3 - 1, rel=1e-6)
    assert torch.isfinite(relative_error(torch.tensor([200.0])))


def _loss(config, predicted, truth, weights=(1.0, 1.0), label=None):
    predicted = torch.tensor(predicted)
    output = Output(predicted, predicted if label is None else torch.tensor(label), torch.zeros(len(predicted), 1))
    return hybrid_loss(config, output, torch.tensor(truth), torch.tensor(weights), LabelTransform("log")).item()


def test_log_terms():
    only = {"relative_weight": 0.0}
    assert _loss(LossConfig(log="mse", **only), [0.0, 1.0], [0.5, 0.0]) == pytest.approx(0.625)
    # Huber over its delta: 0.5 -> 0.5 - 0.05 and 1 -> 1 - 0.05.
    assert _loss(LossConfig(log="huber", **only), [0.0, 1.0], [0.5, 0.0]) == pytest.approx(0.70)


def test_weights_are_relative():
    config = LossConfig(log="mse", relative_weight=0.0)
    assert _loss(config, [0.0, 1.0], [0.5, 0.0], weights=(30.0, 10.0)) == pytest.approx((3 * 0.25 + 1) / 4)


def test_published_objective_with_a_bounded_denominator():
    config = LossConfig(log_weight=0.0, relative_weight=0.0, label_mse_weight=1000.0, label_relative_weight=1.0)
    loss = _loss(config, [0.0, 0.0], [2.0, 0.01], label=[1.0, 0.06])
    assert loss == pytest.approx((1000 * 1 + 0.5 + 1000 * 0.0025 + 0.05 / 0.1) / 2, rel=1e-5)
