"""Quantised values of ONNX: what makes and reads them, and products of whole numbers of 8 bits.

Types of 4 and 2 bits, with which PyTorch computes nothing, are bytes that hold several, along the last axis.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from cdmpp.network.source.onnx_ops.images import convolution
from cdmpp.network.source.onnx_ops.node import OnnxNode, Rule, Rules
from cdmpp.network.source.onnx_types import torch_type

_MOST_MATRICES = 256
"""So many products of a batch of matrices are run one by one, as PyTorch has no batched one of whole numbers."""


class Packed(NamedTuple):
    """Whole numbers of few bits lie in bytes, the first in the lowest bits, each row for itself."""

    bits: int
    signed: bool
    shape: tuple[int, ...]
    """The shape of the numbers; the last axis of the bytes is shorter."""


PACKED_TYPES = {21: (4, False), 22: (4, True), 25: (2, False), 26: (2, True)}
"""Number of ``TensorProto.DataType`` -> bits, and whether numbers are signed: UINT4, INT4, UINT2 and INT2."""


def packed_type(number: int, shape: Any) -> Packed | None:
    """Return how values of an ONNX element type are packed; None where they are not."""
    bits, signed = PACKED_TYPES.get(number, (0, False))
    return Packed(bits, signed, tuple(map(int, shape))) if bits and len(tuple(shape)) else None


def pack(x: Any, one: Packed) -> Any:
    """Put whole numbers of a byte each into bytes that hold several."""
    each, mask = 8 // one.bits, (1 << one.bits) - 1
    x = functional.pad((x & mask).to(torch.uint8), (0, -x.shape[-1] % each))
    parts = x.unflatten(-1, (-1, each)).unbind(-1)
    found = parts[0]
    for place, part in enumerate(parts[1:], 1):
        found = found | (part << (one.bits * place))
    return found


def unpack(x: Any, one: Packed) -> Any:
    """Return the whole numbers that bytes hold, a byte each."""
    mask, high = (1 << one.bits) - 1, 1 << (one.bits - 1)
    parts = [(x >> shift) & mask if shift else x & mask for shift in range(0, 8, one.bits)]
    found = torch.stack(parts, -1).flatten(-2)[..., : one.shape[-1]]
    return (found ^ high).to(torch.int8) - high if one.signed else found


def _plain(node: OnnxNode, place: int, x: Any) -> Any:
    one = node.packed.get(place)
    return x if x is None or one is None else unpack(x, one)


def _along(node: OnnxNode, x: Any, one: Any) -> Any:
    """Let a scale or a zero lie along the axis of ``x`` that it is of, or along blocks of it."""
    axis, block = node["axis"], node["block_size"]
    if one.numel() == 1:
        return one.squeeze()
    axis %= x.dim()
    if one.dim() == 1:
        return one.reshape([-1 if place == axis else 1 for place in range(x.dim())])
    return one.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])


def _quantise(node: OnnxNode, x: Any, scale: Any, zero: Any = None) -> Any:
    """Divide, round, shift, clamp and cast, as PyTorch's reference of its own quantised types does."""
    few = node.packed_result or node.packed.get(2)
    zero = _plain(node, 2, zero)
    named = torch_type(node["output_dtype"], node.refuse) if node["output_dtype"] and not few else None
    kind = zero.dtype if zero is not None else named or torch.uint8
    found = x / _along(node, x, scale)
    if few is None and kind.is_floating_point:
        limit = torch.finfo(kind).max
        return torch.clamp(found, -limit, limit).to(kind)
    found = torch.round(found)
    if zero is not None:
        found = found + _along(node, x, zero)
    if few is not None:
        low = -(1 << (few.bits - 1)) if few.signed else 0
        return pack(torch.clamp(found, low, low + (1 << few.bits) - 1).to(torch.int8), few)
    ends = torch.iinfo(kind)
    return torch.clamp(found, ends.min, ends.max).to(kind)


def _dequantise(node: OnnxNode, x: Any, scale: Any, zero: Any = None) -> Any:
    x, zero = _plain(node, 0, x), _plain(node, 2, zero)
    found = x.to(scale.dtype)
    if zero is not None:
        found = found - _along(node, found, zero)
    return found * _along(node, found, scale)


def _quantise_by_range(_: OnnxNode, x: Any) -> Any:
    low, high = torch.clamp(torch.amin(x), max=0), torch.clamp(torch.amax(x), min=0)
    scale = (high - low) / 255
    zero = torch.clamp(torch.round(-low / scale), 0, 255)
    return torch.clamp(torch.round(x / scale) + zero, 0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


def _signed(x: Any, zero: Any) -> tuple[Any, Any]:
    """Return signed bytes and their zero, in place of unsigned ones; None in place of a zero that is 0."""
    if isinstance(zero, np.ndarray):
        zero = torch.from_numpy(zero.copy()) if zero.any() or x.dtype == torch.uint8 else None
    if x.dtype == torch.int8:
        return x, zero
    zero = torch.zeros((), dtype=torch.int32) if zero is None else zero
    return (x ^ 128).view(torch.int8), zero.to(torch.int32) - 128


def _whole_product(node: OnnxNode, x: Any, y: Any, x_zero: Any = None, y_zero: Any = None) -> Any:
    """Multiply signed bytes by ``torch._int_mm``; what zeros add follows from sums of rows and columns."""
    for one in (x, y):
        if one.dtype not in (torch.int8, torch.uint8):
            node.refuse(
                f"multiplies {str(one.dtype).removeprefix('torch.')}, and PyTorch whole numbers of 8 bits alone"
            )
    (x, x_zero), (y, y_zero) = _signed(x, x_zero), _signed(y, y_zero)
    inner = x.shape[-1]
    found = _products(node, x, y)
    if x_zero is not None:
        rows = x_zero.to(torch.int32)
        rows = rows.unsqueeze(-1) if rows.dim() == 1 and rows.numel() > 1 else rows
        found = found - rows * y.sum(-2, keepdim=True, dtype=torch.int32)
    if y_zero is not None:
        columns = y_zero.to(torch.int32)
        found = found - columns * x.sum(-1, keepdim=True, dtype=torch.int32)
        if x_zero is not None:
            found = found + rows * columns * inner
    return found


def _products(node: OnnxNode, x: Any, y: Any) -> Any:
    if x.dim() < 2 or y.dim() < 2:
        node.refuse("multiplies a vector of whole numbers, and PyTorch matrices alone: unsqueeze it")
    if y.dim() == 2:
        return torch._int_mm(x.reshape(-1, x.shape[-1]), y).unflatten(0, x.shape[:-1])
    shape = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (one.expand(*shape, *one.shape[-2:]).flatten(0, -3) for one in (x, y))
    if x.shape[0] > _MOST_MATRICES:
        node.refuse(
            f"multiplies {x.shape[0]} pairs of matrices of whole numbers, which PyTorch runs one by one: up to "
            f"{_MOST_MATRICES} are read; export the network with QuantizeLinear and DequantizeLinear"
        )
    found = [torch._int_mm(one, other) for one, other in zip(x.unbind(), y.unbind(), strict=True)]
    return torch.stack(found).unflatten(0, shape)


def _quantised_product(
    node: OnnxNode, x: Any, x_scale: Any, x_zero: Any, y: Any, y_scale: Any, y_zero: Any, scale: Any, zero: Any
) -> Any:  # fmt: skip
    """Multiply bytes, and bring what comes out to another scale."""
    if x_scale.numel() > 1:
        x_scale = x_scale.reshape(-1, 1)
    found = _whole_product(node, x, y, x_zero, y_zero)
    return _requantised(found * (x_scale * y_scale / scale), zero)


def _requantised(x: Any, zero: Any) -> Any:
    ends = torch.iinfo(zero.dtype)
    return torch.clamp(torch.round(x) + zero, ends.min, ends.max).to(zero.dtype)


def _shifted(x: Any, zero: Any, axis: int) -> Any:
    """Return whole numbers as floats, their zero at 0."""
    found = x.to(torch.float32)
    if zero is None or (isinstance(zero, np.ndarray) and not zero.any()):
        return found
    zero = torch.from_numpy(zero.copy()) if isinstance(zero, np.ndarray) else zero
    if zero.numel() == 1:
        return found - zero.squeeze()
    return found - zero.reshape([-1 if place == axis else 1 for place in range(x.dim())])


def _whole_convolution(node: OnnxNode, x: Any, weight: Any, x_zero: Any = None, zero: Any = None) -> Any:
    """Convolve in float32, as PyTorch has no convolution of whole numbers: products of bytes are exact in it."""
    found = convolution(node, _shifted(x, x_zero, 1), _shifted(weight, zero, 0))
    return torch.round(found).to(torch.int32)


def _quantised_convolution(
    node: OnnxNode, x: Any, x_scale: Any, x_zero: Any, weight: Any, scale: Any, weight_zero: Any, y_scale: Any,
    zero: Any, bias: Any = None,
) -> Any:  # fmt: skip
    """Convolve in float32, and bring what comes out to another scale."""
    whole = None if bias is None else bias.to(torch.float32)
    found = convolution(node, _shifted(x, x_zero, 1), _shifted(weight, weight_zero, 0), whole)
    step = x_scale * scale / y_scale
    if step.numel() > 1:
        step = step.reshape(1, -1, *[1] * (x.dim() - 2))
    return _requantised(found * step, zero)


def _refused(node: OnnxNode, *_: Any) -> Any:
    node.refuse("is no operator of the standard; export the network with QuantizeLinear and DequantizeLinear")


RULES: Rules = {
    "QuantizeLinear": Rule(_quantise), "DequantizeLinear": Rule(_dequantise),
    "DynamicQuantizeLinear": Rule(_quantise_by_range), "MatMulInteger": Rule(_whole_product, known=(2, 3)),
    "QLinearMatMul": Rule(_quantised_product, known=(2, 5)), "ConvInteger": Rule(_whole_convolution, known=(2, 3)),
    "QLinearConv": Rule(_quantised_convolution, known=(2, 5)),
    **dict.fromkeys(("MatMulInteger16", "QLinearAdd"), Rule(_refused)),
}  # fmt: skip
PACKED_OPERATORS = ("QuantizeLinear", "DequantizeLinear")
"""Operators that read values of 4 and 2 bits."""
