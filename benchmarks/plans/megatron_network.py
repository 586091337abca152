"""A GPT as Megatron-LM builds it, in modules without weights, as one of the ranks sees it that divide its layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

_DROPOUT = 0.1
_PADDED = 128
"""Ranks that divide the vocabulary have a multiple of so many entries each."""


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

    def entries(self, tensor: int) -> int:
        """Return the entries of the vocabulary that each of ``tensor`` ranks has."""
        if tensor == 1:
            return self.vocabulary
        return math.ceil(self.vocabulary / (_PADDED * tensor)) * _PADDED

    def block_parameters(self, tensor: int) -> int:
        """Count the parameters of a block that one rank has."""
        return (12 * self.hidden**2 + 7 * self.hidden) // tensor + 6 * self.hidden


class Attention(nn.Module):
    """Some heads. Their scores are stored, as by Megatron's kernels of 2021 to 2023."""

    def __init__(self, shape: Shape, tensor: int) -> None:
        super().__init__()
        self.heads, self.width = shape.heads // tensor, shape.hidden // shape.heads
        self.qkv = nn.Linear(shape.hidden, 3 * self.heads * self.width)
        self.out = nn.Linear(self.heads * self.width, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, batch, _ = x.shape
        mixed = self.qkv(x).view(tokens, batch * self.heads, 3 * self.width)
        query, key, value = (one.transpose(0, 1) for one in mixed.chunk(3, -1))
        shares = F.dropout(torch.softmax(torch.bmm(query, key.transpose(1, 2)), -1), _DROPOUT, self.training)
        return self.out(torch.bmm(shares, value).transpose(0, 1).reshape(tokens, batch, -1))


class Block(nn.Module):
    """One layer: some heads and a part of the wide layer, all else whole. Of (tokens, examples, features)."""

    def __init__(self, shape: Shape, tensor: int) -> None:
        super().__init__()
        hidden, wide = shape.hidden, 4 * shape.hidden // tensor
        self.before, self.after = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = Attention(shape, tensor)
        self.up, self.down = nn.Linear(hidden, wide), nn.Linear(wide, hidden, bias=False)
        self.biases = nn.Parameter(torch.zeros(2, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.dropout(self.attention(self.before(x)) + self.biases[0], _DROPOUT, self.training)
        wide = F.gelu(self.up(self.after(x)), approximate="tanh")
        return x + F.dropout(self.down(wide) + self.biases[1], _DROPOUT, self.training)


class GPT(nn.Module):
    """Embedding, blocks, and the product with the same embedding."""

    def __init__(self, shape: Shape, tensor: int = 1) -> None:
        super().__init__()
        entries = shape.entries(tensor)
        self.tokens = nn.Embedding(entries, shape.hidden)
        self.positions = nn.Embedding(shape.sequence, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape, tensor) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, entries, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = F.dropout(x.transpose(0, 1).contiguous(), _DROPOUT, self.training)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss(logits: torch.Tensor) -> torch.Tensor:
    """Return a cross-entropy of one rank's entries in float32, by the steps of Megatron's: largest, sum, target."""
    own = logits.float()
    own = own - own.detach().amax(-1, keepdim=True)
    return (own.exp().sum(-1).log() - own[..., 0]).mean()
