"""Torch operators that TVM's importer takes for others, converted as torch defines them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any


def repairs() -> Mapping[str, Callable[[Any, Any], Any]]:
    """Return what emits each torch operator, by name; it takes the torch node and TVM's importer, and gives a value."""
    return {
        "add.Tensor": partial(_scaled, operator.add),
        "cumsum.default": _cumsum,
        "eq.Tensor": _equal,
        "grid_sampler_2d.default": _grid_sampler,
        "index.Tensor": _index,
        "select.int": _select,
        "sub.Tensor": partial(_scaled, operator.sub),
    }


def _scaled(python: Callable[[Any, Any], Any], node: Any, importer: Any) -> Any:
    """The importer leaves out ``alpha``, by which torch multiplies the second operand, in the type of the result."""
    from tvm import relax

    emit, operation = importer.block_builder.emit, relax.op.add if python is operator.add else relax.op.subtract
    if (alpha := node.kwargs.get("alpha", 1)) == 1:
        return importer._binary_op(operation, python)(node)
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    given = (importer.env[one] if hasattr(one, "meta") else relax.const(one, dtype) for one in node.args)
    first, second = (one if str(one.ty.dtype) == dtype else emit(relax.op.astype(one, dtype)) for one in given)
    return emit(operation(first, emit(relax.op.multiply(second, relax.const(alpha, dtype)))))


def _equal(node: Any, importer: Any) -> Any:
    """Bits would be compared as numbers of one bit, which LLVM cannot."""
    from tvm import relax

    emit = importer.block_builder.emit
    sides = [importer.env[argument] if argument in importer.env else relax.const(argument) for argument in node.args]
    if all("bool" in str(side.ty.dtype) for side in sides):
        sides = [emit(relax.op.astype(side, "int8")) for side in sides]
    return emit(relax.op.equal(*sides))


def _cumsum(node: Any, importer: Any) -> Any:
    """Torch counts bits and integers in int64; the importer keeps their type, in which few can be added."""
    from tvm import relax

    data, emit = importer.env[node.args[0]], importer.block_builder.emit
    wanted = str(node.meta["val"].dtype).removeprefix("torch.")
    if str(data.ty.dtype) != wanted:
        data = emit(relax.op.astype(data, wanted))
    return emit(relax.op.cumsum(data, axis=node.args[1])) if node.meta["val"].ndim else data


def _grid_sampler(node: Any, importer: Any) -> Any:
    """Torch has the two coordinates of the grid on its last axis, Relax on its second; the importer leaves them."""
    from tvm import relax

    emit, (image, grid) = importer.block_builder.emit, (importer.env[argument] for argument in node.args[:2])
    mode, padding, corners = node.args[2:5]
    return emit(
        relax.op.image.grid_sample(
            image, emit(relax.op.permute_dims(grid, [0, 3, 1, 2])), method=("bilinear", "nearest", "bicubic")[mode],
            layout="NCHW", padding_mode=("zeros", "border", "reflection")[padding], align_corners=bool(corners),
        )
    )  # fmt: skip


def _index(node: Any, importer: Any) -> Any:
    """The importer takes one axis after the other where axes are left out; torch reads along all indices at once.

    Torch broadcasts the indices to one shape. Its axes are where the indexed ones were, or first where those are apart.
    """
    import torch
    from tvm import relax

    axes = [axis for axis, one in enumerate(node.args[1]) if one is not None]
    known = [node.args[1][axis].meta["val"] for axis in axes]
    if len(axes) in (1, len(node.args[1])) or torch.bool in [one.dtype for one in known]:
        return importer._index_tensor(node)
    shape, together = torch.broadcast_shapes(*(one.shape for one in known)), axes == list(range(axes[0], axes[-1] + 1))
    rows_and_columns = together and len(axes) == 2 and known[0].shape == (shape[0], 1) and shape[0] > 1
    if rows_and_columns and known[1].shape[-1] == known[1].numel() and (known[1].ndim == 1 or known[1].numel() > 1):
        return importer._index_tensor(node)  # one after the other is the same
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    others = [axis for axis in range(data.ty.ndim) if axis not in axes]
    places = [emit(relax.op.broadcast_to(importer.env[node.args[1][axis]], shape)) for axis in axes]
    found = emit(relax.op.index_tensor(emit(relax.op.permute_dims(data, [*axes, *others])), places))
    before = sum(axis < axes[0] for axis in others) if together else 0
    if not before:
        return found
    order = [*range(len(shape), len(shape) + before), *range(len(shape))]
    return emit(relax.op.permute_dims(found, [*order, *range(len(order), len(shape) + len(others))]))


def _select(node: Any, importer: Any) -> Any:
    """An index below 0 counts from the end; the importer reads before the tensor."""
    from tvm import relax

    data, (axis, place) = importer.env[node.args[0]], node.args[1:]
    place += node.args[0].meta["val"].shape[axis] if place < 0 else 0
    return importer.block_builder.emit(relax.op.take(data, relax.const(place, "int64"), axis))
