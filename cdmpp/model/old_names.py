"""Old names and shapes of parts and settings of a model, which stored weights and configurations may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from cdmpp.errors import CdmppError
from cdmpp.model.eager_prior import NO_CACHE

_PARTS: Mapping[str, str] = {"anchor": "prior", "code_anchor": "code_prior"}
"""Old name -> name."""
T = TypeVar("T")


def current_names(values: Mapping[str, T]) -> dict[str, T]:
    """Give ``values`` their names of today, such as ``members.0.prior.known`` for ``members.0.anchor.known``.

    ``CdmppError`` where something is there under both names.
    """
    found = {}
    for name, value in values.items():
        new = ".".join(_PARTS.get(part, part) for part in str(name).split("."))
        if new in found:
            raise CdmppError(f"{new} is there under its old name, too: leave one out")
        found[new] = value
    return found


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
