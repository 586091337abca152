"""Two small trainings that are cut into stages: a convolutional network on digits, a transformer on letters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from benchmarks.distributed_jobs.networks import gpt

TEXT = Path(__file__).parents[2] / "LICENSE"
HELD_OUT = 400
LENGTH, STRIDE = 48, 5
CROSS_ENTROPY = nn.functional.cross_entropy
Batch = tuple[torch.Tensor, torch.Tensor]


def cnn() -> nn.Sequential:
    def conv(of: int, to: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(of, to, 3, stride, 1), nn.ReLU()]

    return nn.Sequential(
        *conv(1, 32), *conv(32, 32), *conv(32, 64, 2), *conv(64, 64), *conv(64, 64), nn.Flatten(),
        nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def transformer() -> nn.Sequential:
    blocks = gpt(96, 4, 128, LENGTH)
    return nn.Sequential(*blocks, nn.Flatten(0, 1))


@cache
def _digits(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    images = torch.from_numpy((pixels - pixels.mean()) / pixels.std()).float().view(-1, 1, 8, 8)
    return images[order], torch.from_numpy(labels.astype(np.int64))[order]


@cache
def _letters(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stretches of the text: their letters but the last one, and those that follow each.

    The held-out ones come first. They are of one part of the text, from a place that the seed draws; the others share
    no letter with it.
    """
    text = torch.tensor([min(ord(letter), 127) for letter in TEXT.read_text()])
    random = torch.Generator().manual_seed(seed)
    text = text.roll(-int(torch.randint(len(text), (1,), generator=random)))
    rows = text.unfold(0, LENGTH + 1, STRIDE)
    gap = -(-(LENGTH + 1) // STRIDE)
    rows = torch.cat([rows[:HELD_OUT], rows[HELD_OUT + gap :]])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def _batch(inputs: torch.Tensor, targets: torch.Tensor, seed: int, step: int, examples: int) -> Batch:
    random = torch.Generator().manual_seed(100_000 * (seed + 1) + step)
    rows = HELD_OUT + torch.randint(len(inputs) - HELD_OUT, (examples,), generator=random)
    return inputs[rows], targets[rows]


def digits(seed: int, examples: int, step: int) -> Batch:
    """The examples of one step, from all but the first of the shuffled digits."""
    return _batch(*_digits(seed), seed, step, examples)


def letters(seed: int, examples: int, step: int) -> Batch:
    return _batch(*_letters(seed), seed, step, examples)


def held_out_digits(seed: int) -> Batch:
    inputs, targets = _digits(seed)
    return inputs[:HELD_OUT], targets[:HELD_OUT]


def held_out_letters(seed: int) -> Batch:
    inputs, targets = _letters(seed)
    return inputs[:HELD_OUT], targets[:HELD_OUT]


def letter_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return CROSS_ENTROPY(outputs, targets.flatten())


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return (outputs.argmax(1) == targets.flatten()).float().mean().item()


@dataclass(frozen=True)
class Training:
    """One network with all that trains it, the same for every method."""

    build: Callable[[], nn.Sequential]
    data: Callable[[int, int, int], Batch]
    held_out: Callable[[int], Batch]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: Callable[..., torch.optim.Optimizer]
    examples: int
    """Examples of one update, that is of a step, whatever its micro-batches."""
    steps: int
    """Steps of a run whose accuracy counts."""
    warm_up: int

    def data_of(self, seed: int, examples: int) -> Callable[[int], Batch]:
        return partial(self.data, seed, examples)

    def held_out_of(self, seed: int) -> Callable[[], Batch]:
        return partial(self.held_out, seed)


LONGER = {"cnn, 800 steps": ("cnn", 800), "transformer, 1,200 steps": ("transformer", 1200)}
"""Runs beyond those of ``TRAININGS``, made once it was seen that 400 steps are too few: network and steps."""
TIMED_STEPS = 160
"""Steps of a run whose seconds count."""
TRAININGS = {
    "cnn": Training(
        cnn, digits, held_out_digits, CROSS_ENTROPY, partial(torch.optim.SGD, lr=0.02, momentum=0.9), 64, 400, 20
    ),
    "transformer": Training(
        transformer, letters, held_out_letters, letter_loss, partial(torch.optim.SGD, lr=0.05, momentum=0.9), 8, 400, 40
    ),
}
ROUNDS = range(5)
"""Rounds in which seconds are measured; the round is the seed."""
SEEDS = range(3)
"""Seeds of the runs whose accuracy counts."""
