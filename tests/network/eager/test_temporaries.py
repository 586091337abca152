"""Peaks of training steps whose losses have formulas of several kernels, beside the storages that torch holds."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks.plan_memory import Watch
from cdmpp.network.eager.batches import TwoReadings
from cdmpp.network.eager.step import read_step
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
    size = 1024 * 256 * 4
    (found,) = (one.call for one in again.step.calls if one.call.workspace_bytes > size)
    assert found.workspace_bytes == 2 * size  # of grad * (2 * x ** 1), both factors on the right
    at = TwoReadings(fewer, more).at(1024)
    assert [one.call.workspace_bytes for one in at.calls] == [one.call.workspace_bytes for one in again.step.calls]
    assert at.memory.live_bytes == again.step.memory.live_bytes
