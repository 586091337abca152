"""Small transformers whose graphs are divided: written by hand, as GPT-2, Llama and T5 are."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WIDTH, TOKENS, VOCABULARY = 32, 8, 64


class Normed(nn.Module):
    """A norm by root mean square, as Llama has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def by_heads(x, size: int):
    """Return ``x`` of (examples, tokens, features) as (examples, heads, tokens, features of a head)."""
    return x.view(*x.shape[:2], -1, size).transpose(1, 2)


class FusedBlock(nn.Module):
    """Attention with one layer for queries, keys and values, and a layer of GELU, as of GPT-2."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (by_heads(one, WIDTH // self.heads) for one in self.qkv(self.ln_1(x)).chunk(3, 2))
        x = x + self.proj(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.ln_2(x))))


class BiasedBlock(nn.Module):
    """Grouped queries by one kernel, with few heads of keys and values, and biases everywhere, as of Qwen2."""

    def __init__(self, heads: int = 8, groups: int = 2) -> None:
        super().__init__()
        self.size = WIDTH // heads
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = (nn.Linear(WIDTH, groups * self.size) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.ln_1(x)
        q, k, v = (by_heads(one(y), self.size) for one in (self.q, self.k, self.v))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(found.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.ln_2(x))))


class Attention(nn.Module):
    """Grouped queries with rotary positions, written out."""

    def __init__(self, heads: int, groups: int) -> None:
        super().__init__()
        self.size = WIDTH // heads
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk, self.wv = (nn.Linear(WIDTH, groups * self.size, bias=False) for _ in range(2))

    def rotated(self, x):
        angle = torch.arange(x.shape[2])[:, None] / torch.arange(1, self.size + 1)
        first, second = x.chunk(2, -1)
        return x * angle.cos() + torch.cat([-second, first], -1) * angle.sin()

    def forward(self, x):
        q, k, v = (by_heads(one(x), self.size) for one in (self.wq, self.wk, self.wv))
        q, k = self.rotated(q), self.rotated(k)
        k, v = (one[:, :, None].expand(-1, -1, q.shape[1] // k.shape[1], -1, -1).flatten(1, 2) for one in (k, v))
        scores = (q @ k.transpose(2, 3) / self.size**0.5).softmax(-1)
        return self.wo((scores @ v).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """A layer of SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class GatedBlock(nn.Module):
    """Attention of grouped queries, and a gated layer, as of Llama."""

    def __init__(self, heads: int = 8, groups: int = 4) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = Normed(WIDTH), Normed(WIDTH)
        self.attention, self.layer = Attention(heads, groups), Gated()

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.layer(self.norm_2(x))


class CrossBlock(nn.Module):
    """Attention to another sequence, with a bias for each head and distance, as of T5."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.size = WIDTH // heads
        self.norm_1, self.norm_2 = Normed(WIDTH), Normed(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.bias = nn.Embedding(2 * TOKENS, heads)
        self.wi, self.wo = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x, other):
        y = self.norm_1(x)
        q, k, v = (by_heads(one(of), self.size) for one, of in ((self.q, y), (self.k, other), (self.v, other)))
        scores, places = q @ k.transpose(2, 3), torch.arange(q.shape[2])
        scores = scores + self.bias(places[:, None] - places[None] + TOKENS).permute(2, 0, 1)[None]
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.wo(functional.relu(self.wi(self.norm_2(x))))


class Language(nn.Module):
    """Tokens in, a score for each word of the vocabulary out."""

    def __init__(self, kind: str, blocks: int = 1, tied: bool = False, **settings) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(TOKENS, WIDTH) if kind == "fused" else None
        make = {"fused": FusedBlock, "gated": GatedBlock, "cross": CrossBlock, "biased": BiasedBlock}[kind]
        self.blocks = nn.ModuleList(make(**settings) for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH) if kind in ("fused", "biased") else Normed(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(tokens.shape[1]))
        other = x
        for block in self.blocks:
            x = block(x, other) if isinstance(block, CrossBlock) else block(x)
        return self.head(self.norm(x))


def tokens(batch: int = 2) -> torch.Tensor:
    """Return examples of tokens, the same ones each time."""
    return torch.randint(0, VOCABULARY, (batch, TOKENS), generator=torch.Generator().manual_seed(0))
