"""Framework operators -> the calls of PyTorch that they stand for: inputs, and what runs them once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from cdmpp.operators.operator import EagerOperator

SCALAR = 0.5
"""Second operand of ``add_scalar`` and the like."""
EXPONENT = 3.0
"""Exponent of ``pow_scalar``, as in the tanh form of GELU. Kernels take whole exponents for products."""
_BLOCK = 65_521
"""Numbers that are repeated: drawing a hundred million takes longer than timing what reads them."""


@dataclass(frozen=True)
class TorchCall:
    """This is one operator, ready to run."""

    inputs: tuple[Tensor, ...]
    """All that the call reads, each once."""
    run: Callable[[], Tensor]
    """Runs it once, eagerly; returns its output, a new tensor. Read it in ``torch.inference_mode()``."""


def torch_call(operator: EagerOperator, place: str = "cpu") -> TorchCall:
    """Make the call on the torch device ``place``, its inputs allocated and filled with numbers from 0.1 to 1.

    Zeros and denormals would run faster or slower than real data. What PyTorch itself refuses (a pooling padded by more
    than half of its kernel, memory that is not there) raises a ``RuntimeError``, here or at the first run.
    """
    return _CALLS[operator.name](operator, _Filler(operator.dtype, place))


class _Filler:
    """Makes inputs."""

    def __init__(self, dtype: str, place: str) -> None:
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.place = place
        self.random = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        """A contiguous tensor of ``shape``."""
        block = torch.rand(_BLOCK, generator=self.random).mul_(0.9).add_(0.1).to(self.place, self.dtype)
        elements = math.prod(shape)
        return block.repeat(-(-elements // _BLOCK))[:elements].view(shape)

    def rows_of(self, rows: int) -> Tensor:
        """Draw (rows,) int64: every row of a table once, in random order."""
        return torch.randperm(rows, generator=self.random).to(self.place)


def _call(function: Callable[..., Tensor], *inputs: Tensor, **more: Any) -> TorchCall:
    return TorchCall(inputs, lambda: function(*inputs, **more))


def _linear(operator: EagerOperator, new: _Filler) -> TorchCall:
    rows, inner, cols = (operator[name] for name in ("rows", "inner", "cols"))
    bias = [new(cols)] if operator["bias"] else []
    return _call(functional.linear, new(rows, inner), new(cols, inner), *bias)


def _bmm(operator: EagerOperator, new: _Filler) -> TorchCall:
    batch, rows, inner, cols = (operator[name] for name in ("batch", "rows", "inner", "cols"))
    second = new(batch, cols, inner).transpose(1, 2) if operator["transposed"] else new(batch, inner, cols)
    return _call(torch.bmm, new(batch, rows, inner), second)


def _conv2d(operator: EagerOperator, new: _Filler) -> TorchCall:
    size, kernel, groups = operator["in_size"], operator["kernel"], operator["groups"]
    image = new(operator["batch"], operator["in_channels"], size, size)
    weight = new(operator["out_channels"], operator["in_channels"] // groups, kernel, kernel)
    steps = {"stride": operator["stride"], "padding": operator["padding"], "groups": groups}
    return _call(functional.conv2d, image, weight, **steps)


def _softmax(operator: EagerOperator, new: _Filler) -> TorchCall:
    return _call(torch.softmax, new(operator["rows"], operator["cols"]), dim=-1)


def _layer_norm(operator: EagerOperator, new: _Filler) -> TorchCall:
    cols = operator["cols"]
    x, weight, bias = new(operator["rows"], cols), new(cols), new(cols)
    return TorchCall((x, weight, bias), lambda: functional.layer_norm(x, (cols,), weight, bias))


def _batch_norm(operator: EagerOperator, new: _Filler) -> TorchCall:
    """A batch norm of one image whose channels are the rows.

    A factor and a shift of each channel are all that it must read, so deviation and scale are one tensor, and mean and
    bias are another: the kernel with four runs all the same.
    """
    rows = operator["rows"]
    x, factor, shift = new(1, rows, operator["cols"]), new(rows), new(rows)
    return TorchCall((x, factor, shift), lambda: functional.batch_norm(x, shift, factor, factor, shift))


def _embedding(operator: EagerOperator, new: _Filler) -> TorchCall:
    return _call(functional.embedding, new.rows_of(operator["rows"]), new(operator["rows"], operator["cols"]))


def _mean(operator: EagerOperator, new: _Filler) -> TorchCall:
    return _call(torch.mean, new(operator["rows"], operator["cols"]), dim=-1)


def _pool(operator: EagerOperator, new: _Filler) -> TorchCall:
    function = functional.max_pool2d if operator.name == "max_pool2d" else functional.avg_pool2d
    image = new(operator["batch"], operator["channels"], operator["in_size"], operator["in_size"])
    return _call(
        function, image, **{name: operator[name] for name in ("stride", "padding")}, kernel_size=operator["kernel"]
    )


def _where(operator: EagerOperator, new: _Filler) -> TorchCall:
    first, second = (new(operator["rows"], operator["cols"]) for _ in range(2))
    return _call(torch.where, first > second, first, second)


def _permute(operator: EagerOperator, new: _Filler) -> TorchCall:
    """Rows that stand block by block, put one of each block after the other."""
    across, cols = operator.block_rows, operator["cols"]
    x = new(across, operator["rows"] // across, cols).transpose(0, 1)
    return _call(torch.clone, x, memory_format=torch.contiguous_format)


def _transpose(operator: EagerOperator, new: _Filler) -> TorchCall:
    rows = operator.block_rows
    x = new(operator["rows"] // rows, operator["cols"], rows).transpose(1, 2)
    return _call(torch.clone, x, memory_format=torch.contiguous_format)


def _broadcast(function: Callable[..., Tensor]) -> Callable[[EagerOperator, _Filler], TorchCall]:
    def made(operator: EagerOperator, new: _Filler) -> TorchCall:
        rows, cols = operator.block_rows, operator["cols"]
        return _call(function, new(operator["rows"] // rows, rows, cols), new(rows, cols))

    return made


def _elementwise(function: Callable[..., Tensor], *scalars: float) -> Callable[[EagerOperator, _Filler], TorchCall]:
    def made(operator: EagerOperator, new: _Filler) -> TorchCall:
        inputs = tuple(new(operator["rows"], operator["cols"]) for _ in range(operator.kind.inputs))
        return TorchCall(inputs, lambda: function(*inputs, *scalars))

    return made


_CALLS: dict[str, Callable[[EagerOperator, _Filler], TorchCall]] = {
    "linear": _linear,
    "bmm": _bmm,
    "conv2d": _conv2d,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    **{name: _elementwise(getattr(torch, name)) for name in ("add", "sub", "mul", "div", "pow")},
    "where": _where,
    **{f"{name}_scalar": _elementwise(getattr(torch, name), SCALAR) for name in ("add", "mul", "div")},
    "pow_scalar": _elementwise(torch.pow, EXPONENT),
    **{name: _elementwise(getattr(torch, name)) for name in ("relu", "neg", "tanh", "exp", "sqrt", "rsqrt", "sigmoid")},
    **{f"{name}_broadcast": _broadcast(getattr(torch, name)) for name in ("add", "mul")},
    "copy": _elementwise(torch.clone),
    "permute": _permute,
    "transpose": _transpose,
    "gelu": _elementwise(functional.gelu),
    "silu": _elementwise(functional.silu),
    "batch_norm": _batch_norm,
    "embedding": _embedding,
    "mean": _mean,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
}
"""Operator name -> function that makes its call; every key of ``LEARNED`` has one."""
