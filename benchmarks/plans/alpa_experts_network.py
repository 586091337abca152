"""Alpa's GPT with experts (GShard): in every second block tokens of a group go to two experts each, by masks.

Sizes are those of ``benchmark/alpa/suite_paper_auto_moe.py`` (github.com/alpa-projects/alpa, commit 8350d913); the
inner width of eight times the model's follows from the numbers of parameters that the rows tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from cdmpp.network.workload import Workload
from cdmpp.programs.models import import_transformers

_CHOSEN, _WIDER = 2, 8


@dataclass(frozen=True)
class Shape:
    """These numbers say what a network computes."""

    hidden: int
    layers: int
    heads: int
    experts: int
    vocabulary: int = 32000
    sequence: int = 1024
    group: int = 2048
    """Tokens among which experts are filled up evenly."""


class Attention(nn.Module):
    """Heads whose scores are stored, as XLA of 2022 runs them. Of (examples, tokens, features)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.norm = shape.heads, nn.LayerNorm(shape.hidden)
        self.qkv, self.out = nn.Linear(shape.hidden, 3 * shape.hidden), nn.Linear(shape.hidden, shape.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        mixed = self.qkv(self.norm(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = (one.transpose(1, 2) for one in mixed.unbind(2))
        shares = torch.softmax(torch.matmul(query, key.transpose(2, 3)) * 0.1, -1)
        return x + self.out(torch.matmul(shares, value).transpose(1, 2).reshape(batch, tokens, width))


class Experts(nn.Module):
    """Two experts a token; a group's tokens are sent and gathered by products with masks over all its places.

    Each example has its part of these products, so that any number of examples can be read.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden, inner, self.experts = shape.hidden, _WIDER * shape.hidden, shape.experts
        self.group = shape.group // shape.experts * shape.experts
        self.norm, self.gate = nn.LayerNorm(hidden), nn.Linear(hidden, shape.experts, bias=False)
        self.up = nn.Parameter(torch.empty(shape.experts, hidden, inner))
        self.down = nn.Parameter(torch.empty(shape.experts, inner, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        multiply = torch.ops.transformers.grouped_mm_fallback
        batch, tokens, width = x.shape
        y, many = self.norm(x), _CHOSEN * tokens
        scores = torch.softmax(self.gate(y), -1)
        slots = scores.repeat_interleave(_CHOSEN * self.group // self.experts, -1)  # experts x places of a group
        masks = (slots > 0).to(x.dtype)
        rows = torch.matmul(masks.transpose(1, 2), y)[:, :many].reshape(-1, width)  # others are other examples' rows
        each = rows.shape[0] // self.experts
        ends = torch.arange(each, rows.shape[0] + 1, each, dtype=torch.int32, device=x.device)
        given = multiply(F.relu(multiply(rows, self.up, ends)), self.down, ends)
        whole = F.pad(given.view(batch, many, width), (0, 0, 0, _CHOSEN * self.group - many))
        return x + torch.matmul(slots, whole)


class Dense(nn.Module):
    """The block between two with experts."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        inner = _WIDER * shape.hidden
        self.norm, self.up, self.down = (
            nn.LayerNorm(shape.hidden), nn.Linear(shape.hidden, inner), nn.Linear(inner, shape.hidden),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.relu(self.up(self.norm(x))))


class GPT(nn.Module):
    """Embeddings, blocks of which every second one has experts, and the product with words."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words, self.places = (
            nn.Embedding(shape.vocabulary, shape.hidden), nn.Embedding(shape.sequence, shape.hidden),
        )  # fmt: skip
        kinds = (Experts, Dense)
        self.blocks = nn.ModuleList(
            nn.Sequential(Attention(shape), kinds[number % 2](shape)) for number in range(shape.layers)
        )
        self.norm, self.head = nn.LayerNorm(shape.hidden), nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@cache
def workload(shape: Shape) -> Workload:
    """Return one step in halves with Adam, without memory for its weights."""
    import_transformers()
    import transformers.integrations.moe  # noqa: F401 - it registers the product of experts

    with torch.device("meta"):
        network = GPT(shape).half().train()
    words = torch.zeros(2, shape.sequence, dtype=torch.long)

    def loss(scores: torch.Tensor) -> torch.Tensor:
        own = scores.flatten(0, 1).float()
        return F.cross_entropy(own, own.new_zeros(own.shape[0], dtype=torch.long))

    return Workload(network, (words,), loss=loss, optimizer="adam-fused", mode="training_step", precision="fp16")
