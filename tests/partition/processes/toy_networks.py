"""Networks and data small enough for tests, and plain loops that train them without the engine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from functools import partial

import torch
from torch import nn

SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAM = partial(torch.optim.AdamW, lr=0.01)
MSE = nn.functional.mse_loss


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 2))


def wide() -> nn.Sequential:
    """Its first layer returns 800,000 bytes of 8 examples."""
    return nn.Sequential(nn.Linear(3, 25_000), nn.Linear(25_000, 2))


def with_dropout() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)
    )


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step)
    inputs = torch.randn(8, 3, generator=random)
    return inputs, torch.stack([inputs.sum(1), inputs.prod(1)], 1)


def held_out() -> tuple[torch.Tensor, torch.Tensor]:
    return data(10_000)


def near(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return ((outputs - targets).abs() < 1).float().mean().item()


def plain_loop(build, optimizer, steps: int, micro_batches: int = 1, seed: int = 0):
    """One device, one update a step: names and values of the weights, and the loss of each step."""
    torch.manual_seed(seed)
    model = build()
    trains, losses = optimizer(model.parameters()), []
    for step in range(steps):
        trains.zero_grad()
        parts = zip(*(one.chunk(micro_batches) for one in data(step)), strict=True)
        found = []
        for inputs, targets in parts:
            loss = MSE(model(inputs), targets)
            (loss / micro_batches).backward()
            found.append(loss.item())
        trains.step()
        losses.append(sum(found) / micro_batches)
    return model.state_dict(), losses


# A chain of numbers y = w0 * w1 * ... * x, loss (y - t)^2 / 2: its gradients fit in a line each.


class Factor(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value * x


FACTORS = (0.9, 1.2, 0.7)


def factors() -> nn.Sequential:
    return nn.Sequential(*map(Factor, FACTORS))


def number(step: int) -> tuple[float, float]:
    return 1.0 + 0.1 * (step % 3), 2.0 - 0.2 * (step % 4)


def numbers(step: int, micro_batches: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    found = [number(step * micro_batches + one) for one in range(micro_batches)]
    return tuple(torch.tensor(one, dtype=torch.float64) for one in zip(*found, strict=True))


def half_square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return 0.5 * (outputs - targets).square().mean()


# What goes wrong.


class Odd(nn.Module):
    """Does what ``how`` says in the forward pass of a later step."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls = how, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 6:
            if self.how == "raise":
                raise ArithmeticError("no more numbers")
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "exit":
                os._exit(3)
            if self.how == "stand still":
                time.sleep(60)
            if self.how == "grow":
                return torch.cat([x, x])
            if self.how == "two":
                return x, x
        return x


def odd(how: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), Odd(how), nn.Linear(5, 2))


def uneven_data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = data(step)
    return (inputs[:6], targets[:6]) if step == 3 else (inputs, targets)


def slow_data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    time.sleep(0.05)
    if step == 3 and multiprocessing.current_process().name.endswith(("-1", ":1")):
        print("trains", flush=True)
    return data(step)


def nan_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return MSE(outputs, targets) * float("nan")


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2))
    model[2].weight = model[0].weight
    return model


if __name__ == "__main__":
    from cdmpp.partition import train
    from tests.partition.processes import toy_networks as toy

    print("starts", flush=True)
    train(toy.network, [2], "1f1b", toy.slow_data, MSE, SGD, steps=2000, micro_batches=2)
