"""LeafEncoder: kernel and leaf vectors -> one token each -> pre-norm transformer with a padding mask."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from cdmpp.model.config import CdmppConfig
from cdmpp.model.packing import Packing

MAX_KERNEL_ORDINAL = 16  # kernels after this one share the last ordinal's embedding


def sinusoidal(positions: Tensor, width: int, theta: float = 10000.0) -> Tensor:
    """Encode positions by the textbook sine and cosine: (...,) int -> (..., width) float32."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half, device=positions.device) * (-math.log(theta) / half))
    angles = positions[..., None].float() * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Block(nn.Module):
    """A block is pre-norm self-attention and feed-forward."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_feedforward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feedforward = nn.Sequential(nn.Linear(width, feedforward), nn.GELU(), nn.Linear(feedforward, width))
        # On the residual branches only: inside attention it would cost the fused kernel.
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, packing: Packing) -> Tensor:
        """Encode packed tokens (n, width), same shape; only attention sees them program by program."""
        width = x.shape[1]
        qkv = packing.padded(self.qkv(self.norm_attention(x)))
        qkv = qkv.view(*qkv.shape[:2], 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, packing.mask).transpose(1, 2).flatten(2)
        x = x + self.drop(self.out(packing.packed(attended)))
        return x + self.drop(self.feedforward(self.norm_feedforward(x)))


class LeafEncoder(nn.Module):
    """The encoder takes standardised vectors of any number of leaves and kernels, and returns encoded tokens."""

    def __init__(self, leaf_width: int, kernel_width: int, config: CdmppConfig) -> None:
        super().__init__()
        self.width = width = config.width
        self.embed_leaf = nn.Sequential(nn.Linear(leaf_width, width), nn.GELU(), nn.Linear(width, width))
        self.embed_kernel = nn.Sequential(nn.Linear(kernel_width, width), nn.GELU(), nn.Linear(width, width))
        # Adds what is known of a leaf's kernel straight to the leaf: no attention hop is spent on finding it.
        self.kernel_to_leaf = nn.Linear(width, width, bias=False)
        self.token_type = nn.Parameter(0.02 * torch.randn(2, width))
        self.kernel_ordinal = nn.Embedding(MAX_KERNEL_ORDINAL, width)
        nn.init.normal_(self.kernel_ordinal.weight, std=0.02)
        self.blocks = nn.ModuleList(
            Block(width, config.heads, config.feedforward, config.dropout) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, packing: Packing, leaves: Tensor, kernels: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return kernel tokens (k, width) and leaf tokens (l, width).

        Of standardised ``leaves`` (l, leaf_width) and ``kernels`` (k, kernel_width), and ``context`` (B, width).
        """
        n_kernel = len(kernels)
        kernel = self.embed_kernel(kernels)
        ordinals, in_kernel = packing.ordinal_of_kernel, packing.ordinal_of_leaf
        leaf = self.embed_leaf(leaves) + self.kernel_to_leaf(kernel).index_select(0, packing.kernel_of_leaf)
        leaf = leaf + sinusoidal(packing.leaf_positions, self.width).to(leaves.dtype)
        leaf = leaf + self.token_type[1] + self.kernel_ordinal(in_kernel.clamp_max(MAX_KERNEL_ORDINAL - 1))
        kernel = kernel + self.token_type[0] + self.kernel_ordinal(ordinals.clamp_max(MAX_KERNEL_ORDINAL - 1))
        programs = torch.cat([packing.program_of_kernel, packing.program_of_leaf])
        tokens = torch.cat([kernel, leaf]) + context.index_select(0, programs)
        for block in self.blocks:
            tokens = block(tokens, packing)
        tokens = self.norm(tokens)
        return tokens[:n_kernel], tokens[n_kernel:]
