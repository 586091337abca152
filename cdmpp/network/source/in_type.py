"""A torch model as it would be with weights of another type, the given one left as it is."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from cdmpp.errors import CdmppError


def in_type(model: nn.Module, example: Any, dtype: str) -> tuple[nn.Module, Any]:
    """Copy it with empty weights and inputs of a floating type: for what it runs, not for what it computes.

    Weights and inputs that are not floats stay as they are, as ``module.to(dtype)`` leaves them. A model that has the
    type throughout is not copied.

    Args:
        model: a torch module.
        example: its inputs.
        dtype: name of a type of torch, such as ``bfloat16``.

    Raises:
        CdmppError: the module cannot be copied.
    """
    wanted: torch.dtype = getattr(torch, dtype)
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point() and tensor.dtype != wanted:
            empty = torch.empty_like(tensor, dtype=wanted, requires_grad=False)  # untouched memory costs nothing
            is_weight = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_weight else empty
    if not memo:
        return model, floats_in(example, dtype)
    try:
        return copy.deepcopy(model, memo), floats_in(example, dtype)
    except Exception as error:
        raise CdmppError(
            f"{type(model).__name__} cannot be copied, as weights of {dtype} need it: {error}. Give it in {dtype} "
            "yourself, with its inputs, and leave precision out"
        ) from error


def floats_in(given: Any, dtype: str) -> Any:
    """Return tensors with floats of the type of that name."""
    wanted: torch.dtype = getattr(torch, dtype)
    return tree_map_only(torch.Tensor, lambda value: value.to(wanted) if value.is_floating_point() else value, given)
