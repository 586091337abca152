"""Models whose weights have shapes and no values: what they run can be read without the memory for them."""

from __future__ import annotations

import copy
from typing import Any

from cdmpp.errors import CdmppError


def is_weightless(model: Any) -> bool:
    """Return True if all weights are on the device meta."""
    return {value.device.type for value in [*model.parameters(), *model.buffers()]} == {"meta"}


def as_on_cpu(model: Any, example: Any) -> tuple[Any, Any]:
    """Copy a model on the device meta, and its inputs, as tensors of a CPU that hold nothing.

    On meta itself operators lay out their results in other ways than on CPUs and GPUs, and more is copied.

    Raises:
        CdmppError: the module cannot be copied.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_map_only

    mode = FakeTensorMode(allow_non_fake_inputs=True)  # such as a target, or a constant of the model

    def hollow(value: Any) -> Any:
        with mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")

    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        is_weight = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(hollow(tensor), tensor.requires_grad) if is_weight else hollow(tensor)
    try:
        return copy.deepcopy(model, memo), tree_map_only(torch.Tensor, hollow, example)
    except Exception as error:
        raise CdmppError(f"{type(model).__name__} on the device meta cannot be copied: {error}") from error
