"""Ranker: which programs of a task are likely the fastest, by only their compact ASTs.

What a compiler makes of a program decides much of its latency, and is not in its AST. So this model does not say how
long a program runs, only how likely each of several is the best: enough to choose the few that are worth compiling.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cdmpp.devices import VECTOR_WIDTH
from cdmpp.model.pooled import POOLED_WIDTH

WIDTH, MEMBERS = 64, 3
SHARPNESS = 0.15
"""Log-latency behind the best program at which a program's share of the goal falls to a third: one unit of a score."""
_INPUTS = POOLED_WIDTH + VECTOR_WIDTH
CLIP = 6.0
DROPOUT = 0.1


class Ranker(nn.Module):
    """Small perceptrons read pooled programs with their devices (``pooled.with_devices``); their mean score counts."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.zeros(_INPUTS))
        self.register_buffer("scale", torch.zeros(_INPUTS))
        self.members = nn.ModuleList(_perceptron() for _ in range(MEMBERS))

    def fit_statistics(self, columns: Tensor) -> None:
        """Centre and scale inputs by the training programs (n, inputs). What never varied among them is not read."""
        deviation, self.mean = torch.std_mean(columns, dim=0)
        self.scale = torch.where(deviation > 0, 1.0 / deviation.clamp_min(1e-6), 0.0)

    def scaled(self, columns: Tensor) -> Tensor:
        """Return (n, inputs) as the members read them."""
        return ((columns - self.mean) * self.scale).clamp(-CLIP, CLIP)

    def forward(self, columns: Tensor) -> Tensor:
        """Score (n, inputs) as (n,). A softmax over programs of one task gives the chance of each to be the fastest."""
        inputs = self.scaled(columns)
        return torch.stack([member(inputs)[:, 0] for member in self.members]).mean(0)


def _perceptron() -> nn.Sequential:
    layers = [nn.Linear(_INPUTS, WIDTH), nn.GELU(), nn.Dropout(DROPOUT)]
    layers += [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(DROPOUT)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))
