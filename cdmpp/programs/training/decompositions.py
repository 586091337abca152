"""Decompositions of what a training step is made of, down to operators that TVM imports with all their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cdmpp.errors import CdmppError


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return torch's own table of core operators, changed where TVM's importer needs it.

    The importer gives zeros for the saved statistics of a batch norm, and one result of a layer norm instead of three.
    A forward pass never reads these; a backward pass would be wrong without a word. Both are taken apart here.
    """
    import torch
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten = torch.ops.aten
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    apart = [
        aten._native_batch_norm_legit_functional, aten.native_batch_norm, aten.native_batch_norm_backward,
        aten.native_layer_norm, aten.native_group_norm, aten._softmax_backward_data, aten.detach, aten.addmm,
    ]  # fmt: skip
    table.update(get_decompositions(apart))
    table[aten.convolution_backward.default] = convolution_backward
    table[aten.var_mean.correction] = var_mean
    table[aten._adaptive_avg_pool2d_backward.default] = adaptive_average_pool_backward
    table.pop(aten.embedding_dense_backward.default, None)  # a converter makes one kernel of it
    return table


def convolution_backward(
    gradient: Any,
    data: Any,
    weight: Any,
    _bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """Compute gradients of data [N, C, ...], weight [O, C / groups, ...] and bias [O], each where ``wanted``.

    That of the data is a transposed convolution. That of the weight is a convolution of data and gradient with batch
    and channels exchanged, stride and dilation exchanged, and cut to the size of the weight.
    ``CdmppError`` for transposed convolutions.
    """
    import torch

    if transposed:
        raise CdmppError("the backward pass of a transposed convolution is not covered: convolutions are")
    aten, rank = torch.ops.aten, len(stride)
    of_data = of_weight = None
    if wanted[0]:
        # What the forward pass left over at the far edge because of its stride.
        rest = [
            data.shape[2 + i]
            - ((gradient.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (weight.shape[2 + i] - 1) + 1)
            for i in range(rank)
        ]
        of_data = aten.convolution(gradient, weight, None, stride, padding, dilation, True, rest, groups)
    if wanted[1]:
        of_weight = _weight_gradient(gradient, data, weight.shape[2:], stride, padding, dilation, groups)
    of_bias = gradient.sum([0, *range(2, 2 + rank)]) if wanted[2] else None
    return of_data, of_weight, of_bias


def _weight_gradient(
    gradient: Any,
    data: Any,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Any:
    import torch

    rank = len(stride)
    spatial = list(range(2, 2 + rank))
    if groups == 1:
        exchanged = data.permute(1, 0, *spatial)
    else:
        batch, channels = data.shape[:2]
        apart = data.reshape(batch, groups, channels // groups, *data.shape[2:])
        order = apart.permute(2, 1, 0, *(axis + 1 for axis in spatial))
        exchanged = order.reshape(channels // groups, groups * batch, *data.shape[2:])
    kernel = gradient.permute(1, 0, *spatial)
    found = torch.ops.aten.convolution(exchanged, kernel, None, dilation, padding, stride, False, [0] * rank, groups)
    for i, size in enumerate(window):
        found = found.narrow(2 + i, 0, size)
    return found.permute(1, 0, *spatial)


def var_mean(
    data: Any, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Any, Any]:
    """Compute variance and mean over ``dim`` as sums; the importer has no variance with a correction."""
    dims = list(dim) if dim is not None else list(range(data.dim()))
    count = math.prod(data.shape[axis] for axis in dims)
    mean = data.mean(dims, True)
    variance = ((data - mean) ** 2).sum(dims, keepdim) / (count - (1 if correction is None else correction))
    return variance, mean if keepdim else mean.reshape(variance.shape)


def adaptive_average_pool_backward(gradient: Any, data: Any) -> Any:
    """Compute the gradient of data [N, C, H, W]; ``CdmppError`` where not all windows are of one size."""
    batch, channels, height, width = data.shape
    rows, columns = gradient.shape[2:]
    if height % rows or width % columns:
        raise CdmppError(
            f"the backward pass of an adaptive average pooling from {height} x {width} to {rows} x {columns} is not "
            "covered, since its windows differ: choose an image whose size is a multiple of what is pooled to"
        )
    high, wide = height // rows, width // columns
    shared = (gradient / (high * wide)).reshape(batch, channels, rows, 1, columns, 1)
    return shared.expand(batch, channels, rows, high, columns, wide).reshape(batch, channels, height, width)
