"""LeafEncoder: kernel and leaf vectors -> one token each -> pre-norm transformer with a padding mask."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from cdmpp.model.loop_sequence import LoopSequence

POSITIONS = ("preorder", "serial", "none", "relative")
"""How a leaf's place in the tree is told: sine and cosine of its pre-order index or of its index in the serialised tree
(CDMPP section 4), not at all, or as an attention bias by the distance between two leaves and whether they share a
kernel."""
MAX_KERNEL_ORDINAL = 16
"""Kernels after this one share the last ordinal's embedding."""


class Encoded(NamedTuple):
    kernels: Tensor
    """(B, K, width) encoded kernel tokens; values where padded mean nothing."""
    leaves: Tensor
    """(B, L, width) encoded leaf tokens."""


def sinusoidal(positions: Tensor, width: int, theta: float = 10000.0) -> Tensor:
    """Textbook sine and cosine positional encoding: (...,) int -> (..., width) float32."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half, device=positions.device) * (-math.log(theta) / half))
    angles = positions[..., None].float() * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class RelativeBias(nn.Module):
    """A number per head for each pair of tokens: leaves by signed log-distance of their pre-order indices."""

    BUCKETS = 9

    def __init__(self, heads: int):
        super().__init__()
        self.table = nn.Embedding(2 * (2 * self.BUCKETS + 1) + 1, heads)
        nn.init.zeros_(self.table.weight)

    def forward(self, positions: Tensor, kernels: Tensor, n_kernel: int) -> Tensor:
        """(B, L) pre-order indices, (B, L) kernels -> (B, heads, K + L, K + L); pairs with a kernel token share one."""
        distance = positions[:, :, None] - positions[:, None, :]
        size = torch.log2(1.0 + distance.abs()).floor().long().clamp_max(self.BUCKETS)
        bucket = distance.sign() * size + self.BUCKETS
        same = (kernels[:, :, None] == kernels[:, None, :]).long()
        bucket = bucket + same * (2 * self.BUCKETS + 1)
        whole = nn.functional.pad(bucket, (n_kernel, 0, n_kernel, 0), value=self.table.num_embeddings - 1)
        return self.table(whole).permute(0, 3, 1, 2)


class Block(nn.Module):
    """Pre-norm self-attention and feed-forward."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_feedforward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feedforward = nn.Sequential(nn.Linear(width, feedforward), nn.GELU(), nn.Linear(feedforward, width))
        # On the residual branches only: inside attention it would cost the fused kernel.
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, mask)
        x = x + self.drop(self.out(attended.transpose(1, 2).reshape(batch, tokens, width)))
        return x + self.drop(self.feedforward(self.norm_feedforward(x)))


class LeafEncoder(nn.Module):
    """Standardised vectors in, encoded tokens out; any number of leaves and kernels."""

    def __init__(
        self,
        leaf_width: int,
        kernel_width: int,
        width: int,
        layers: int,
        heads: int,
        feedforward: int,
        dropout: float,
        positions: str = "preorder",
        loops: str = "flat",
    ):
        super().__init__()
        self.width, self.positions = width, positions
        self.bias = RelativeBias(heads) if positions == "relative" else None
        self.loops = LoopSequence(width) if loops == "sequence" else None
        self.embed_leaf = nn.Sequential(nn.Linear(leaf_width, width), nn.GELU(), nn.Linear(width, width))
        self.embed_kernel = nn.Sequential(nn.Linear(kernel_width, width), nn.GELU(), nn.Linear(width, width))
        # Adds what is known of a leaf's kernel straight to the leaf: no attention hop is spent on finding it.
        self.kernel_to_leaf = nn.Linear(width, width, bias=False)
        self.token_type = nn.Parameter(0.02 * torch.randn(2, width))
        self.kernel_ordinal = nn.Embedding(MAX_KERNEL_ORDINAL, width)
        nn.init.normal_(self.kernel_ordinal.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(width, heads, feedforward, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(
        self,
        leaves: Tensor,
        leaf_mask: Tensor,
        leaf_positions: Tensor,
        leaf_serial_positions: Tensor,
        leaf_kernels: Tensor,
        kernels: Tensor,
        kernel_mask: Tensor,
        context: Tensor,
    ) -> Encoded:
        """Args as in ``Batch``, vectors already scaled; ``context`` (B, width) is added to every token."""
        n_kernel = kernels.shape[1]
        kernel = self.embed_kernel(kernels)
        ordinals = torch.arange(n_kernel, device=kernels.device).clamp_max(MAX_KERNEL_ORDINAL - 1)
        own_kernel = self.kernel_to_leaf(kernel).gather(1, leaf_kernels[..., None].expand(-1, -1, self.width))
        if self.loops is None:
            leaf = self.embed_leaf(leaves) + own_kernel
        else:
            rest, nests = self.loops(leaves)
            leaf = self.embed_leaf(rest) + nests + own_kernel
        if self.positions in ("preorder", "serial"):
            places = leaf_positions if self.positions == "preorder" else leaf_serial_positions
            leaf = leaf + sinusoidal(places, self.width).to(leaves.dtype)
        leaf = leaf + self.token_type[1] + self.kernel_ordinal(leaf_kernels.clamp_max(MAX_KERNEL_ORDINAL - 1))
        kernel = kernel + self.token_type[0] + self.kernel_ordinal(ordinals)
        tokens = torch.cat([kernel, leaf], dim=1) + context[:, None]
        mask = torch.cat([kernel_mask, leaf_mask], dim=1)[:, None, None, :]
        if self.bias is not None:
            bias = self.bias(leaf_positions, leaf_kernels, n_kernel).to(tokens.dtype)
            mask = bias.masked_fill(~mask, -torch.inf)
        for block in self.blocks:
            tokens = block(tokens, mask)
        tokens = self.norm(tokens)
        return Encoded(tokens[:, :n_kernel], tokens[:, n_kernel:])
