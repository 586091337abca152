"""Two small real trainings: a convolutional network on digits, and a transformer on the letters of a licence.

The speed of virtual cores drifts: a loop of additions alone took up to 40 % more or less within a minute. So each batch
ends when it has had a fixed time of the CPU; what its training did not need, about half, it spends on counting.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from benchmarks.distributed_jobs.networks import gpt as gpt_of

_TEXT = Path(__file__).parents[2] / "LICENSE"
_HELD_OUT = 256
_LENGTH = 64
BATCH_CPU_S = 0.02
"""CPU seconds of every batch."""


class Trained:
    """A network, the samples of one worker, and a plain SGD."""

    def __init__(self, model: nn.Module, draw: Callable[[], torch.Tensor], held_out: torch.Tensor, rate: float) -> None:
        self.model, self.draw, self.held_out = model, draw, held_out
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=rate)

    def batch(self) -> tuple[int, float]:
        begin_s = time.process_time()
        batch = self.draw()
        self.optimizer.zero_grad()
        loss = self.loss_of(batch)
        loss.backward()
        self.optimizer.step()
        value = loss.item()
        while time.process_time() - begin_s < BATCH_CPU_S:
            pass
        return len(batch), value

    def loss(self) -> float:
        with torch.no_grad():
            return self.loss_of(self.held_out).item()

    def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Digits(Trained):
    """Rows of 64 pixels and a label."""

    def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(batch[:, :64].view(-1, 1, 8, 8)), batch[:, 64].long())


class Letters(Trained):
    """Rows of letters, each of which is to be foretold from those before it."""

    def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def digits(examples: int, width: int, rate: float, seed: int, worker: int, workers: int) -> Digits:
    """Each worker has its own part of the 1,797 digits of scikit-learn."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * width, 96), nn.ReLU(),
        nn.Linear(96, 10),
    )  # fmt: skip
    pixels, labels = load_digits(return_X_y=True)
    rows = torch.from_numpy(np.column_stack([(pixels - pixels.mean()) / pixels.std(), labels])).float()
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    own, random = rows[_HELD_OUT + worker :: workers], torch.Generator().manual_seed(1000 * seed + worker)
    return Digits(
        model, lambda: own[torch.randint(len(own), (examples,), generator=random)], rows[:_HELD_OUT], rate
    )  # fmt: skip


def letters(examples: int, width: int, rate: float, seed: int, worker: int, workers: int) -> Letters:
    """Each worker draws from its own stretch of the text."""
    torch.manual_seed(seed)
    model = gpt_of(width, 2, 128, _LENGTH)
    text = torch.tensor([min(ord(letter), 127) for letter in _TEXT.read_text()])
    rows = text.unfold(0, _LENGTH + 1, 7)
    held_out = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:64]]
    own, random = rows[worker::workers], torch.Generator().manual_seed(1000 * seed + worker)
    return Letters(model, lambda: own[torch.randint(len(own), (examples,), generator=random)], held_out, rate)


def cnn(seed: int, worker: int, workers: int) -> Digits:
    return digits(60, 40, 0.2, seed, worker, workers)


def gpt(seed: int, worker: int, workers: int) -> Letters:
    return letters(5, 96, 0.1, seed, worker, workers)


TRAININGS = {"cnn": cnn, "gpt": gpt}
