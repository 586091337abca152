"""Axes of a sweep: what each sets in a workload, and which sizes it may have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cdmpp.errors import UsageError
from cdmpp.network.workload import Workload
from cdmpp.platform.limits import SIZES, Limits

AXES: Mapping[str, str] = {
    "batch": "batch",
    "seq": "sequence",
    "past": "past",
    "decoder-seq": "decoder_sequence",
}
"""Name of an axis -> the field of a ``Workload`` that it sets."""
IMAGE = "image"
"""Axis of the side of a square image in pixels, of a network of torchvision."""
_OF_MODULES = ("batch", "seq")
_PAST = Limits(0, 2**31)
MOST_POINTS = 10_000


def checked_points(workload: Workload, axes: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Return all points; ``UsageError`` for axes that cannot be swept.

    An axis is one of ``AXES``, ``image``, or the name of an open dimension of an ONNX file.
    """
    names = ", ".join((*AXES, IMAGE))
    if not axes:
        raise UsageError(f"nothing is swept: give the sizes of an axis, one of {names}")
    is_onnx = workload.path is not None and workload.path.suffix == ".onnx"
    for name, sizes in axes.items():
        if name not in (*AXES, IMAGE) and not is_onnx:
            raise UsageError(f"there is no axis {name!r} to sweep: one of {names}; of ONNX files open dimensions, too")
        if not sizes:
            raise UsageError(f"the axis {name} has no sizes: give some, such as {name}=1,2,4")
        for size in sizes:
            (_PAST if name == "past" else SIZES).fitting(f"a size of {name}", size)
        given = getattr(workload, AXES[name]) if name in AXES else (workload.inputs or {}).get(name)
        if given is not None:
            raise UsageError(f"{name} is {given} and swept, too: leave one of them out")
    if workload.inputs and not is_onnx:
        raise UsageError("inputs give shapes, and sizes are swept: leave one of them out")
    if IMAGE in axes and not is_onnx and not str(workload.network).startswith("torchvision:"):
        raise UsageError("the axis image is the side of an image, of torchvision: names; give inputs for one size")
    if workload.path is None:
        _check_module(workload, axes)
    count = math.prod(len(sizes) for sizes in axes.values())
    if count > MOST_POINTS:
        raise UsageError(f"{count:,} points: take at most {MOST_POINTS:,} in one sweep")
    return [dict(zip(axes, sizes, strict=True)) for sizes in itertools.product(*axes.values())]


def workload_at(workload: Workload, point: Mapping[str, int]) -> Workload:
    """Return the workload at a point; ``UsageError``: there is none of these sizes."""
    if workload.path is None:
        return replace(workload, example_inputs=_example_at(workload.example_inputs, point))
    fields: dict[str, Any] = {AXES[name]: size for name, size in point.items() if name in AXES}
    inputs: dict[str, tuple[int, ...]] = {name: (size,) for name, size in point.items() if name not in AXES}
    if workload.path.suffix != ".onnx" and IMAGE in inputs:
        side = point[IMAGE]
        inputs = {"x": (point.get("batch", workload.batch or 1), 3, side, side)}
    if inputs:
        fields["inputs"] = {**(workload.inputs or {}), **inputs}
    return replace(workload, **fields)


def _check_module(workload: Workload, axes: Mapping[str, Sequence[int]]) -> None:
    """``UsageError`` for a module that has no example inputs with these axes."""
    first = _first(workload.example_inputs)
    if not workload.is_torch or first is None:
        raise UsageError(
            "a module has the sizes of its example inputs: give some, or a name, or file.py:FUNCTION that takes sizes"
        )
    for name in axes:
        if name not in _OF_MODULES:
            raise UsageError(f"the axis {name} is of networks of a name: of a module {' and '.join(_OF_MODULES)}")
    if "seq" in axes and (first.dim() != 2 or first.is_floating_point()):
        raise UsageError(
            f"the axis seq is of tokens, and the first example input has the shape {tuple(first.shape)} of "
            f"{str(first.dtype).removeprefix('torch.')}: leave seq out"
        )


def _example_at(example: Any, point: Mapping[str, int]) -> Any:
    """Example inputs whose first axis is as long as that of the first one, or whose second one is, at other sizes."""
    import torch
    from torch.utils import _pytree

    first = _first(example)

    def sized(one: Any) -> Any:
        for axis, name in enumerate(_OF_MODULES):
            if name in point and one.dim() > axis and one.shape[axis] == first.shape[axis]:
                one = one.index_select(axis, torch.arange(point[name]) % one.shape[axis])
        return one

    return _pytree.tree_map_only(torch.Tensor, sized, example)


def _first(example: Any) -> Any:
    """The first tensor of example inputs that has a batch; None without."""
    import torch
    from torch.utils import _pytree

    tensors = (one for one in _pytree.tree_leaves(example) if isinstance(one, torch.Tensor))
    return next((one for one in tensors if one.dim()), None)
