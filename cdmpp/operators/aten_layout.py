"""Layouts of tensors in memory -> the copies that PyTorch makes of them before it computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators.operator import EagerOperator


def dtype_of(value: Any) -> str:
    """Return floats as they are; whole numbers and truth move as many bytes as some float does."""
    text = str(value.dtype).removeprefix("torch.")
    if value.dtype.is_complex:
        raise UnsupportedProgramError(f"nobody measured operators of {text}")
    return text if "float" in text else {4: "float32", 8: "float64"}.get(value.dtype.itemsize, "float16")


def shape_of(value: Any) -> list[int]:
    """Return the shape of a tensor; ``UnsupportedProgramError``: it is known only when the network runs."""
    try:
        return [int(size) for size in value.shape]
    except (TypeError, ValueError, RuntimeError) as error:  # of torch, where values decide
        raise UnsupportedProgramError(f"a shape depends on the values of inputs ({list(value.shape)})") from error


def arguments_of(node: Any) -> dict[str, Any]:
    """Return arguments of a call by the names of its schema, nodes as their tensors; those left out are not there."""
    names = [argument.name for argument in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return {name: _tensor(value) for name, value in given.items()}


def _tensor(given: Any) -> Any:
    if isinstance(given, tuple | list):
        return [_tensor(one) for one in given]
    value = given.meta["val"] if hasattr(given, "meta") else given
    return value[0] if hasattr(given, "meta") and isinstance(value, tuple | list) else value


def tensors_in(value: Any) -> list[Any]:
    """List the tensors of what a node has: one, several, or none."""
    values = value if isinstance(value, tuple | list) else (value,)
    return [one for one in values if hasattr(one, "numel") and hasattr(one, "dtype")]


def matrix(name: str, value: Any, last: int = -1) -> EagerOperator:
    """Make the operator of all elements of a tensor, those along one of its axes in a row."""
    shape = shape_of(value) or [1]
    return EagerOperator(name, {"rows": math.prod(shape) // shape[last], "cols": shape[last]}, dtype_of(value))


def copy_of(value: Any) -> EagerOperator:
    """Return the operator of a contiguous copy: it moves rows that are whole in memory, and gathers others across."""
    if value.is_contiguous():
        return matrix("copy", value)
    strides = [stride for size, stride in zip(value.shape, value.stride(), strict=True) if size != 1]
    return matrix("permute" if strides[-1] == 1 else "transpose", value)


def copies_for(value: Any, shape: Sequence[int]) -> list[EagerOperator]:
    """Return the calls before a tensor can be read as one of ``shape``: none, or a copy."""
    return [] if can_be_viewed(value, shape) else [copy_of(value)]


def can_be_viewed(value: Any, shape: Sequence[int]) -> bool:
    """Return True if a tensor can be seen in another shape where it lies."""
    import torch

    given = torch.empty_strided(shape_of(value), [int(stride) for stride in value.stride()], device="meta")
    try:
        given.view(*shape)
    except RuntimeError:
        return False
    return True
