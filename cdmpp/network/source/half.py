"""A torch model as it would be in half precision, the given one left as it is."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from cdmpp.errors import CdmppError


def in_half(model: nn.Module, example: Any) -> tuple[nn.Module, Any]:
    """Copy it with empty weights and inputs of float16: for what it runs, not for what it computes.

    Raises:
        CdmppError: the module cannot be copied.
    """
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            empty = torch.empty_like(tensor, dtype=torch.float16, requires_grad=False)  # untouched memory costs nothing
            is_weight = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_weight else empty
    try:
        return copy.deepcopy(model, memo), _halved(example)
    except Exception as error:
        raise CdmppError(
            f"{type(model).__name__} cannot be copied, as half precision needs it: {error}. Give it in float16 "
            "yourself, with its inputs, and leave dtype out"
        ) from error


def _halved(given: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda value: value.half() if value.is_floating_point() else value, given)
