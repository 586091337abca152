"""Rows that a model has learned of single devices, one for each, found again by the device's vector."""

from __future__ import annotations

import torch
from torch import Tensor

_SAME = 1e-6
_NEAR = 0.005
"""Squared distance of device vectors below which all devices count alike."""
_SHARPNESS, _LEAST = 2, 1e-20
"""Power of the inverse squared distance by which known devices count; chosen, as ``_NEAR``, by leaving devices out."""


def places(vectors: Tensor, known: Tensor) -> Tensor:
    """Return (B,) int64 places of vectors (B, device width) in ``known`` (max_devices, device width); -1: in none."""
    distance, place = (vectors[:, None] - known[None]).square().sum(-1).min(1)
    return torch.where(distance < _SAME, place, -1)


def recalled(vectors: Tensor, known: Tensor, own: Tensor) -> Tensor:
    """Return the rows of ``own`` (max_devices, *) of the devices (B, device width), (B, *); zero where not known.

    ``known``: (max_devices, device width), infinite where a place is free.
    """
    place = places(vectors, known)
    return torch.where((place >= 0).reshape(-1, *[1] * (own.ndim - 1)), own[place], 0.0)


def borrowed(vectors: Tensor, known: Tensor, own: Tensor) -> Tensor:
    """Return ``own`` (max_devices, rows, numbers) of the devices (B, device width), by device and row.

    A row that is unknown of a device is the mean over the devices that have it, the nearest foremost. A row of zeros
    is unknown, unless its device has no others.
    """
    distance = (vectors[:, None] - known[None]).square().sum(-1)
    near, told = ((_NEAR + distance) ** -_SHARPNESS).to(own), (own != 0).any(2)  # near: 0 of a free place
    told |= ~told.any(1, keepdim=True)
    shares = near[:, :, None] * told
    mean = torch.einsum("bkr,krn->brn", shares, own) / shares.sum(1).clamp_min(_LEAST)[..., None]
    shortest, place = distance.min(1)
    is_told = (shortest < _SAME)[:, None] & told[place]
    return torch.where(is_told[..., None], own[place], mean)


def remember(vector: Tensor, row: Tensor, known: Tensor, own: Tensor) -> None:
    """Write the ``row`` of the device with that ``vector`` (device width,), over its last one or in a free place."""
    same = (known == vector.to(known)).all(1)
    place = int((same if same.any() else known.isinf().all(1)).nonzero()[0, 0])
    known[place] = vector.to(known)
    own[place] = row.to(own)
