"""Element types and tensors of ONNX as those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

_TYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16, 17: torch.float8_e4m3fn, 18: torch.float8_e4m3fnuz,
    19: torch.float8_e5m2, 20: torch.float8_e5m2fnuz,
}  # fmt: skip
"""Number of ``TensorProto.DataType`` -> the type of PyTorch. Its wider unsigned types have hardly an operator."""
_AS_BITS = {torch.bfloat16: torch.int16, **dict.fromkeys([_TYPES[number] for number in range(17, 21)], torch.uint8)}
"""Types that NumPy has not by itself -> the whole numbers that carry their bits."""


def torch_type(number: int, refuse: Callable[[str], NoReturn]) -> torch.dtype:
    """Return the type of PyTorch of an ONNX element type; ``refuse`` is called with the reason where it has none."""
    if number in _TYPES:
        return _TYPES[number]
    from onnx import TensorProto

    refuse(f"has the type {TensorProto.DataType.Name(number)}, with which PyTorch computes nothing")


def torch_tensor(array: Any, refuse: Callable[[str], NoReturn]) -> torch.Tensor:
    """Return an array of NumPy as a tensor with memory of its own; ``refuse`` as of ``torch_type``."""
    kind, array = torch_type(number_of(array), refuse), array.copy()
    if (bits := _AS_BITS.get(kind)) is not None:
        return torch.from_numpy(array.view(str(bits).removeprefix("torch."))).view(kind)
    return torch.from_numpy(array)


def number_of(array: Any) -> int:
    """Return the ONNX element type of an array of NumPy."""
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(array.dtype))
