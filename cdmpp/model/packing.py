"""Packing: the tokens of a batch side by side, without the padding, of which a batch has as much as of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cdmpp.data.batching import Batch


@dataclass(frozen=True)
class Packing:
    """The k kernels of B programs come first, then their l leaves, each in the order of programs."""

    program_of_kernel: Tensor
    """(k,) int64."""
    program_of_leaf: Tensor
    """(l,) int64."""
    kernel_of_leaf: Tensor
    """(l,) int64, among all kernels of the batch."""
    ordinal_of_kernel: Tensor
    """(k,) int64, place of the kernel in its program."""
    ordinal_of_leaf: Tensor
    """(l,) int64, place in its program of the kernel that holds the leaf."""
    leaf_positions: Tensor
    """(l,) int64, pre-order index."""
    places: Tensor
    """(B * T,) int64, the token of each padded place; k + l where there is none."""
    tokens: Tensor
    """(k + l,) int64, the padded place of each token."""
    mask: Tensor
    """(B, 1, 1, T) bool, True where something is."""

    @staticmethod
    def of(batch: Batch) -> Packing:
        """Return where the tokens of ``batch`` go."""
        kernel_mask, leaf_mask = batch.kernel_mask, batch.leaf_mask
        program_of_kernel, ordinal_of_kernel = kernel_mask.nonzero(as_tuple=True)
        program_of_leaf, leaf = leaf_mask.nonzero(as_tuple=True)
        counts = kernel_mask.sum(1)
        ordinal_of_leaf = batch.leaf_kernels[program_of_leaf, leaf]
        kernel_of_leaf = (counts.cumsum(0) - counts)[program_of_leaf] + ordinal_of_leaf
        mask = torch.cat([kernel_mask, leaf_mask], dim=1)
        length, n = mask.shape[1], len(program_of_kernel) + len(program_of_leaf)
        of_kernels = program_of_kernel * length + ordinal_of_kernel
        tokens = torch.cat([of_kernels, program_of_leaf * length + kernel_mask.shape[1] + leaf])
        places = torch.full((mask.numel(),), n, device=mask.device)
        places[tokens] = torch.arange(n, device=mask.device)
        return Packing(
            program_of_kernel,
            program_of_leaf,
            kernel_of_leaf,
            ordinal_of_kernel,
            ordinal_of_leaf,
            batch.leaf_positions[program_of_leaf, leaf],
            places,
            tokens,
            mask[:, None, None, :],
        )

    def padded(self, x: Tensor) -> Tensor:
        """Spread tokens (k + l, width) to (B, T, width), zeros where there is none."""
        spread = torch.cat([x, x.new_zeros(1, x.shape[1])]).index_select(0, self.places)
        return spread.view(len(self.mask), -1, x.shape[1])

    def packed(self, x: Tensor) -> Tensor:
        """Take the tokens (k + l, width) out of (B, T, width)."""
        return x.reshape(-1, x.shape[-1]).index_select(0, self.tokens)


def mean_by(rows: Tensor, owners: Tensor, n: int) -> Tensor:
    """Average ``rows`` (m, width) over each of ``n`` owners (m,): (n, width); zeros for one that has none."""
    total = torch.zeros(n, rows.shape[1], device=rows.device).index_add(0, owners, rows.float())
    counts = torch.bincount(owners, minlength=n).clamp_min(1)
    return (total / counts[:, None]).to(rows.dtype)
