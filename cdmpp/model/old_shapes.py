"""Shapes that weights of a model had once, as they are now."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from cdmpp.model.eager_prior import NO_CACHE


def current_shapes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give a stored model of framework operators the numbers of second-level caches that it lacks: as if none was.

    What its training found in caches is not known either, so no answer of it is flagged for that.
    """
    found = dict(tensors)
    for name, learned in tensors.items():
        model, _, part = name.rpartition(".")
        numbers = [f"{model}.prior.{key}" for key in ("numbers", "own", "halves")]
        shared, cached = f"{model}.prior.shared", f"{model}.cached"
        if part != "learned" or cached in tensors or not tensors.keys() >= {*numbers, shared}:
            continue
        found |= {key: pad(tensors[key], (0, 1)) for key in numbers}
        found[shared] = torch.cat([tensors[shared], tensors[shared].new_tensor([NO_CACHE, 0.0])])
        found[cached] = torch.ones(len(learned), len(tensors[numbers[0]]))
    return found
