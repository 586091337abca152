"""What a model has learned of single devices: a row for each, found again by the device's vector."""

from __future__ import annotations

import torch
from torch import Tensor

_SAME = 1e-6
_NEAR = 0.005
"""Squared distance of device vectors below which all devices count alike; chosen by leaving devices out."""


def recalled(vectors: Tensor, known: Tensor, own: Tensor) -> Tensor:
    """(B, device width) -> (B, *) the row of ``own`` (max_devices, *) of that device; zero where it is not known.

    ``known``: (max_devices, device width), infinite where a place is free.
    """
    distance, place = (vectors[:, None] - known[None]).square().sum(-1).min(1)
    is_known = (distance < _SAME).reshape(-1, *[1] * (own.ndim - 1))
    return torch.where(is_known, own[place], 0.0)


def borrowed(vectors: Tensor, known: Tensor, own: Tensor) -> Tensor:
    """As ``recalled``, and for a device that is not known the mean over known ones, by inverse squared distance."""
    distance = (vectors[:, None] - known[None]).square().sum(-1)
    if not distance.isfinite().any():  # nobody to borrow from
        return recalled(vectors, known, own)
    near = 1 / (_NEAR + distance)  # 0 of a free place
    shares = (near / near.sum(1, keepdim=True)).to(own)
    is_known = (distance.amin(1) < _SAME).reshape(-1, *[1] * (own.ndim - 1))
    return torch.where(is_known, own[distance.argmin(1)], torch.einsum("bk,k...->b...", shares, own))


def remember(vector: Tensor, row: Tensor, known: Tensor, own: Tensor) -> None:
    """Write the ``row`` of the device with that ``vector`` (device width,), over its last one or in a free place."""
    same = (known == vector.to(known)).all(1)
    place = int((same if same.any() else known.isinf().all(1)).nonzero()[0, 0])
    known[place] = vector.to(known)
    own[place] = row.to(own)
