"""Torch operators that TVM's importer takes for others, converted as torch defines them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def repairs() -> Mapping[str, Callable[[Any, Any], Any]]:
    """Name of a torch operator -> what emits it; each takes the torch node and TVM's importer, and returns a value."""
    return {"cumsum.default": _cumsum, "eq.Tensor": _equal, "grid_sampler_2d.default": _grid_sampler}


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
    return emit(relax.op.cumsum(data, axis=node.args[1]))


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
