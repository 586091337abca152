"""DeviceEncoder: the datasheet vector of a device -> an embedding, the same for every program on it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DeviceEncoder(nn.Sequential):
    """The encoder turns ``Device.vector()`` (B, V) into (B, width).

    Only columns in which the training devices differ are read: untrained weights must not answer for the others.
    """

    shift: Tensor
    differs: Tensor

    def __init__(self, vector_width: int, width: int, hidden: int = 64) -> None:
        super().__init__(nn.Linear(vector_width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.register_buffer("shift", torch.zeros(vector_width))
        self.register_buffer("differs", torch.ones(vector_width))

    @torch.no_grad()
    def fit(self, vectors: Tensor) -> None:
        """Learn from the vectors (d, V) of the training devices which columns differ."""
        self.shift.copy_(vectors.mean(0))
        self.differs.copy_((vectors - vectors[:1]).abs().amax(0) > 1e-6)

    @torch.no_grad()
    def open_columns(self, vectors: Tensor) -> None:
        """Read the further columns in which ``vectors`` (d, V) differ from what training saw, with weight zero."""
        new = ((vectors - self.shift).abs().amax(0) > 1e-6) & (self.differs == 0)
        self.get_parameter("0.weight")[:, new] = 0.0
        self.differs[new] = 1.0

    def forward(self, vectors: Tensor) -> Tensor:
        """Encode (B, V) as (B, width)."""
        return super().forward((vectors - self.shift) * self.differs)
