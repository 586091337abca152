"""DeviceEncoder: the datasheet vector of a device -> an embedding, the same for every program on it."""

from __future__ import annotations

from torch import Tensor, nn


class DeviceEncoder(nn.Sequential):
    """(B, V) ``Device.vector()`` -> (B, width)."""

    def __init__(self, vector_width: int, width: int, hidden: int = 64):
        super().__init__(nn.Linear(vector_width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, vectors: Tensor) -> Tensor:
        return super().forward(vectors)
