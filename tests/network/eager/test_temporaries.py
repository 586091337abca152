"""Peaks of training steps whose losses have formulas of several kernels, beside the storages that torch holds."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from benchmarks.plan_memory import Watch
from cdmpp.network.eager import saved
from cdmpp.network.eager.batches import TwoReadings
from cdmpp.network.eager.step import read_step
from cdmpp.network.eager.temporaries import Gradients, gradients_of
from cdmpp.network.workload import Workload


class Ending(nn.Module):
    """Two layers, of which the second one's result a function makes a loss of."""

    def __init__(self, loss) -> None:
        super().__init__()
        self.loss, self.first, self.second = loss, nn.Linear(16, 256), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self.second(torch.relu(self.first(x))))


LOSSES = {
    "mean": torch.mean,
    "square": lambda y: y.square().mean(),
    "power": lambda y: (y.abs() ** 3).mean(),
    "root": lambda y: (y.abs() + 1).sqrt().mean(),
    "reciprocal of root": lambda y: (y.abs() + 1).rsqrt().mean(),
    "quotient": lambda y: (y / (y.abs() + 1)).mean(),
    "norm": torch.norm,
    "norms of rows": lambda y: y.norm(dim=1).mean(),
    "variance": torch.var,
    "deviation": torch.std,
    "product": lambda y: y.prod(1).mean(),
    "sum so far": lambda y: y.cumsum(1).mean(),
    "sigmoid": lambda y: y.sigmoid().mean(),
    "gelu": lambda y: functional.gelu(y).mean(),
    "softplus": lambda y: functional.softplus(y).mean(),
    "exp": lambda y: y.exp().mean(),
    "log": lambda y: (y.abs() + 1).log().mean(),
    "relu in place": lambda y: torch.relu_(y).mean(),
    "power in place": lambda y: (y * 1).pow_(3).mean(),
    "product in place": lambda y: (y * 1).mul_(y).mean(),
    "quotient in place": lambda y: (y * 1).div_(y.abs() + 1).mean(),
    "product of itself": lambda y: (y * 2).mul(y).mean(),
    "mean square": lambda y: functional.mse_loss(y, torch.zeros_like(y)),
    "absolute": lambda y: functional.l1_loss(y, torch.zeros_like(y)),
    "smooth": lambda y: functional.smooth_l1_loss(y, torch.zeros_like(y)),
    "binary": lambda y: functional.binary_cross_entropy(y.sigmoid(), torch.zeros_like(y)),
    "logits": lambda y: functional.binary_cross_entropy_with_logits(y, torch.zeros_like(y)),
    "weighted logits": lambda y: functional.binary_cross_entropy_with_logits(
        y, torch.zeros_like(y), pos_weight=torch.ones(256)
    ),
    # composite operators, whose variables live until they return
    "divergence": lambda y: functional.kl_div(y, torch.zeros_like(y)),
    "divergence of logarithms": lambda y: functional.kl_div(y, torch.zeros_like(y), log_target=True),
    "huber": lambda y: functional.huber_loss(y, torch.zeros_like(y)),
    "cosine": lambda y: functional.cosine_embedding_loss(y, y * 2, torch.ones(y.shape[0])),
    "hinge": lambda y: functional.hinge_embedding_loss(y, torch.ones_like(y)),
    "ranking": lambda y: functional.margin_ranking_loss(y, y * 2, torch.ones_like(y)),
    "triplet": lambda y: functional.triplet_margin_loss(y, y * 2, y * 3),
    "distance": lambda y: functional.pairwise_distance(y, y * 2).mean(),
    "poisson": lambda y: functional.poisson_nll_loss(y, torch.zeros_like(y)),
    "labels": lambda y: functional.multilabel_soft_margin_loss(y, torch.zeros_like(y)),
    "three factors": lambda y: torch.einsum("bij,bjk,bkl->bil", *[y.view(-1, 16, 16)] * 3).mean(),
    "matrix norm": lambda y: torch.linalg.matrix_norm(y.view(-1, 16, 16)).mean(),
    "largest norm": lambda y: y.norm(p=float("inf")),
    "log of a sum": lambda y: y.logsumexp(1).mean(),
    "group norm": lambda y: functional.group_norm(y, 4).square().mean(),
}


def peak_bytes(model: nn.Module, x: torch.Tensor) -> int:
    """Return the most bytes of storages in a step after the first one."""
    with Watch() as watch:
        for one in (x, *model.parameters()):
            one.detach()
        for _ in range(2):
            model.zero_grad()
            model(x).backward()
            gc.collect()
    return watch.most


def read(loss, batch: int = 1024):
    workload = Workload(
        Ending(loss), (torch.randn(batch, 16),), loss=lambda output: output, optimizer="none", mode="training_step"
    )
    return read_step(workload, "cpu")


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_temporaries_of_formulas_count_in_the_peak(loss):
    step = read(loss).step
    assert step.peak_bytes == pytest.approx(peak_bytes(Ending(loss), torch.randn(1024, 16)), rel=0.003)


def test_temporaries_of_equal_calls_and_of_other_batches_are_known_without_a_run():
    again, fewer, more = (read(LOSSES["square"], batch) for batch in (1024, 2, 3))
    size, square = 1024 * 256 * 4, [one.call for one in again.step.calls if one.call.name.startswith("square")]
    assert [one.output_bytes for one in square] == [size] * 4  # of grad * (2 * x ** 1) the three on the right
    assert sum(one.workspace_bytes for one in square) == size  # what was raised lives until its multiple is multiplied
    at = TwoReadings(fewer, more).at(1024)
    assert [one.call.workspace_bytes for one in at.calls] == [one.call.workspace_bytes for one in again.step.calls]
    assert at.memory.live_bytes == again.step.memory.live_bytes


class Peeks(torch.autograd.Function):
    """Its backward pass reads a value."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.sum().item()


def test_a_formula_that_reads_values_is_unknown():
    mode = FakeTensorMode()
    with mode:
        x = torch.empty(8, 4, requires_grad=True)
    assert gradients_of(Peeks.apply, (x,), {}, mode).bytes is None
    assert gradients_of(torch.ops.aten.exp.default, (x,), {}, mode).bytes == 2 * 8 * 4 * 4
    assert gradients_of(torch.ops.aten.exp_.default, (x,), {}, mode).bytes == 2 * 8 * 4 * 4
    assert gradients_of(torch.ops.aten.exp.default, (x.detach(),), {}, mode).bytes == 0


def test_an_operator_whose_temporaries_are_unknown_is_named_once(monkeypatch):
    def unknown(run, args, kwargs, mode=None):
        return Gradients(None) if "square" in str(run) else gradients_of(run, args, kwargs, mode)

    monkeypatch.setattr(saved, "gradients_of", unknown)
    step = read(lambda y: y.square().mean() + (y * 2).square().mean(), 777).step
    (found,) = (one for one in step.warnings if one.startswith("memory"))
    assert "aten.square.default" in found
    assert not any(one.startswith("memory") for one in read(LOSSES["power in place"]).step.warnings)


@pytest.mark.parametrize("name", ["smooth_l1_loss", "l1_loss", "binary_cross_entropy_with_logits", "huber_loss"])
def test_losses_that_nobody_measured_are_answered_with_a_word_of_doubt(name):
    found = read(lambda y: getattr(functional, name)(y, torch.zeros_like(y)))
    assert set(found.stand_ins.values()) == {name}


def test_a_tensor_that_takes_a_shape_alone_gets_no_gradient():
    step = read(lambda y: functional.mse_loss(y, torch.zeros_like(y))).step
    assert not [one for one in step.calls if one.phase == "backward" and "zeros_like" in one.call.name]
