"""FeatureScaler: brings each feature column to a common scale; its statistics come from training data only."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FeatureScaler(nn.Module):
    """Scaled is (x - shift) * factor, clipped. Columns constant in training give zero: nothing was learned of them."""

    shift: Tensor
    factor: Tensor

    def __init__(self, width: int, clip: float = 6.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("shift", torch.zeros(width))
        self.register_buffer("factor", torch.ones(width))

    @torch.no_grad()
    def fit(self, rows: Tensor, kind: str = "standard") -> None:
        """Learn from ``rows`` (n, width): ``standard`` is zero mean and unit variance, ``minmax`` is 0 to 1."""
        rows = rows.double()
        shift, spread = rows.mean(0), rows.std(0, correction=0)
        if kind == "minmax":
            shift, spread = rows.amin(0), rows.amax(0) - rows.amin(0)
        varies = spread > 1e-6
        self.shift.copy_(shift)
        self.factor.copy_(torch.where(varies, 1.0 / spread.clamp_min(1e-6), torch.zeros_like(spread)))

    def forward(self, x: Tensor) -> Tensor:
        """Scale (..., width), same shape."""
        return ((x - self.shift) * self.factor).clamp(-self.clip, self.clip)
