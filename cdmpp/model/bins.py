"""QuantileBins: a number as its place in each of a few bins, so that a linear layer can bend where the data lie."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_COLUMNS = 32


class QuantileBins(nn.Module):
    """The encoding is piecewise linear (Gorishniy et al. 2022), centred: 0 below a bin, 1 above; edges: quantiles."""

    low: Tensor
    factor: Tensor
    mean: Tensor

    def __init__(self, width: int, bins: int) -> None:
        super().__init__()
        self.bins = bins
        self.register_buffer("low", torch.zeros(width, bins))
        self.register_buffer("factor", torch.ones(width, bins))
        self.register_buffer("mean", torch.zeros(width, bins))

    @torch.no_grad()
    def fit(self, rows: Tensor) -> None:
        """Learn edges and means from standardised ``rows`` (n, width)."""
        rows = rows[:: max(1, len(rows) // 65536)].float()
        shares = torch.linspace(0, 1, self.bins + 1, device=rows.device)
        ranks = (shares * (len(rows) - 1)).round().long()
        edges = rows.sort(0).values[ranks].T  # (width, bins + 1)
        self.low.copy_(edges[:, :-1])
        # A bin without width is a step, a little above its value.
        self.factor.copy_(1.0 / edges.diff().clamp_min(1e-3))
        for start in range(0, len(self.low), _COLUMNS):  # all at once would take three times as much as all else
            own = slice(start, start + _COLUMNS)
            self.mean[own] = ((rows[:, own, None] - self.low[own]) * self.factor[own]).clamp(0, 1).mean(0)

    def _places(self, x: Tensor) -> Tensor:
        return ((x[..., None] - self.low) * self.factor).clamp(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Encode (..., width) as (..., width * bins)."""
        return (self._places(x) - self.mean).flatten(-2)
