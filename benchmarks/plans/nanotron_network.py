"""A Llama as nanotron builds it, in modules without weights, as one of its tensor parallel ranks sees it.

Between products of rows and of columns each rank has some of the tokens (sequence parallel), and all tokens here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.plans.megatron_network import Shape


class Norm(nn.Module):
    """A root mean square norm in float32, call by call."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Attention(nn.Module):
    """Some heads, fused and causal. Positions turn queries and keys in one kernel each."""

    def __init__(self, shape: Shape, tensor: int) -> None:
        super().__init__()
        self.heads, self.width = shape.heads // tensor, shape.hidden // shape.heads
        self.qkv = nn.Linear(shape.hidden, 3 * self.heads * self.width, bias=False)
        self.out = nn.Linear(self.heads * self.width, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        tokens, batch, _ = x.shape
        mixed = self.qkv(x).view(tokens, batch, 3, self.heads, self.width).permute(2, 1, 3, 0, 4)
        query, key, value = mixed.unbind(0)
        found = F.scaled_dot_product_attention(query * angles, key * angles, value, is_causal=True)
        return self.out(found.permute(2, 0, 1, 3).reshape(tokens, batch, -1))


class Block(nn.Module):
    """One layer, of (tokens, examples, features)."""

    def __init__(self, shape: Shape, tensor: int) -> None:
        super().__init__()
        self.before, self.after = (Norm(shape.hidden) for _ in range(2))
        self.attention = Attention(shape, tensor)
        self.inner = shape.inner // tensor
        self.up = nn.Linear(shape.hidden, 2 * self.inner, bias=False)
        self.down = nn.Linear(self.inner, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x), angles)
        gate, up = self.up(self.after(x)).split(self.inner, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """Embedding, blocks and head."""

    def __init__(self, shape: Shape, tensor: int, tied: bool) -> None:
        super().__init__()
        entries = shape.vocabulary // tensor
        self.tokens = nn.Embedding(entries, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape, tensor) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)
        self.head = nn.Linear(shape.hidden, entries, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        self.angles = nn.Buffer(torch.zeros(shape.sequence, shape.hidden // shape.heads), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens.transpose(0, 1))
        for block in self.blocks:
            x = block(x, self.angles)
        return self.head(self.norm(x))
