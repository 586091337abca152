"""Sizes and loss of a decoder as one of the ranks has them that divide its layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Shape:
    """These numbers say what a GPT computes."""

    hidden: int
    heads: int
    layers: int
    sequence: int
    vocabulary: int = 50257
    inner: int = 0
    """Width between the products of a block's second half; 0: four times ``hidden``."""


def loss(logits: torch.Tensor) -> torch.Tensor:
    """Return a cross-entropy of one rank's entries in float32, by the steps of Megatron's: largest, sum, target."""
    own = logits.float()
    own = own - own.detach().amax(-1, keepdim=True)
    return (own.exp().sum(-1).log() - own[..., 0]).mean()
