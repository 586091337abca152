"""A decoder in the modules that Megatron and nanotron build it from, without weights, before ranks divide it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from cdmpp.plans.frameworks import Framework
from cdmpp.plans.transformer_shape import TransformerShape

_DROPOUT, _EPSILON = 0.1, 1e-5


class _FloatNorm(nn.Module):
    """A root mean square norm in float32, call by call."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + _EPSILON)).to(x.dtype)


class _RowLinear(nn.Linear):
    """A product of rows: the bias is added by itself, behind the sum over ranks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = F.linear(x, self.weight)
        return found if self.bias is None else found + self.bias


class _Attention(nn.Module):
    """Attention of grouped heads, in one kernel or with its scores stored, as the framework says."""

    def __init__(self, shape: TransformerShape, framework: Framework) -> None:
        super().__init__()
        self.framework, self.width = framework, shape.head_size
        self.groups = shape.kv_heads or shape.heads
        self.each, self.rotates = shape.heads // self.groups, not shape.positions
        wide = self.groups * (self.each + 2) * self.width
        self.qkv = nn.Linear(shape.hidden, wide, bias=shape.has_bias)
        self.out = _RowLinear(shape.heads * self.width, shape.hidden, bias=shape.has_bias)

    def forward(self, x: torch.Tensor, angles: torch.Tensor | None) -> torch.Tensor:
        first, second, _ = x.shape
        mixed = self.qkv(x).view(first, second, self.groups, (self.each + 2) * self.width)
        query, key, value = mixed.split([self.each * self.width, self.width, self.width], -1)
        if self.framework.rotary_copies:
            query, key, value = (one.contiguous() for one in (query, key, value))
            key, value = torch.cat((key[None], value[None])).permute(1, 2, 0, 3, 4).contiguous().unbind(2)
        query = query.reshape(first, second, self.groups * self.each, self.width)
        if angles is not None:
            query, key = query * angles, key * angles
        is_last = self.framework.sequence_parallel
        order = (0, 2, 1, 3) if is_last else (1, 2, 0, 3)
        query, key, value = (one.permute(order) for one in (query, key, value))
        if self.framework.attention == "flash":
            many = self.each > 1
            found = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=many)
        else:
            if self.each > 1:
                key, value = (one.repeat_interleave(self.each, 1) for one in (key, value))
            shares = torch.softmax(query @ key.transpose(-2, -1), -1)
            if self.framework.dropout:
                shares = F.dropout(shares, _DROPOUT, self.training)
            found = shares @ value
        back = (0, 2, 1, 3) if is_last else (2, 0, 1, 3)
        return self.out(found.permute(back).reshape(first, second, -1))


class _Block(nn.Module):
    def __init__(self, shape: TransformerShape, framework: Framework) -> None:
        super().__init__()
        self.drops, self.is_gated, self.inner = framework.dropout, shape.is_gated, shape.inner
        self.before, self.after = (_norm(shape, framework) for _ in range(2))
        self.attention = _Attention(shape, framework)
        self.up = nn.Linear(shape.hidden, (1 + shape.is_gated) * shape.inner, bias=shape.has_bias)
        self.down = _RowLinear(shape.inner, shape.hidden, bias=shape.has_bias)

    def forward(self, x: torch.Tensor, angles: torch.Tensor | None) -> torch.Tensor:
        x = x + self.dropped(self.attention(self.before(x), angles))
        wide = self.up(self.after(x))
        if self.is_gated:
            gate, wide = wide.split(self.inner, -1)
            wide = F.silu(gate) * wide
        else:
            wide = F.gelu(wide, approximate="tanh")
        return x + self.dropped(self.down(wide))

    def dropped(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, _DROPOUT, self.training) if self.drops else x


class FrameworkDecoder(nn.Module):
    """Embedding, blocks and head; tokens are (examples, tokens), scores (tokens, examples, words) or the reverse."""

    def __init__(self, shape: TransformerShape, framework: Framework) -> None:
        super().__init__()
        self.is_last, self.drops = framework.sequence_parallel, framework.dropout
        self.tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(shape.positions, shape.hidden) if shape.positions else None
        self.blocks = nn.ModuleList(_Block(shape, framework) for _ in range(shape.layers))
        self.norm = _norm(shape, framework)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if shape.is_tied:
            self.head.weight = self.tokens.weight
        size = (shape.sequence, 1, shape.head_size) if self.is_last else (shape.sequence, 1, 1, shape.head_size)
        self.angles = None if shape.positions else nn.Buffer(torch.zeros(size), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of all words."""
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        if not self.is_last:
            x = x.transpose(0, 1).contiguous()
        if self.drops:
            x = F.dropout(x, _DROPOUT, self.training)
        for block in self.blocks:
            x = block(x, self.angles)
        return self.head(self.norm(x))


def _norm(shape: TransformerShape, framework: Framework) -> nn.Module:
    if shape.positions:
        return nn.LayerNorm(shape.hidden)
    return nn.RMSNorm(shape.hidden, _EPSILON) if framework.fused_norms else _FloatNorm(shape.hidden)


def decoder_loss(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of every word, in float32."""
    return F.cross_entropy(scores.float().view(-1, scores.shape[-1]), words.reshape(-1))


def decoder_of(shape: TransformerShape, framework: Framework) -> FrameworkDecoder:
    """Return the modules on the meta device, in bfloat16."""
    with torch.device("meta"):
        return FrameworkDecoder(shape, framework).bfloat16().train()
