"""Operators of ONNX that move elements, or make them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from cdmpp.network.source.onnx_ops.node import OnnxNode, Rule, Rules
from cdmpp.network.source.onnx_types import number_of, torch_tensor, torch_type

_PADS = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _reshape(node: OnnxNode, x: Any, shape: Any = None) -> Any:
    sizes = node.axes(shape, "shape") or []
    if not node["allowzero"]:
        sizes = [x.shape[place] if size == 0 else size for place, size in enumerate(sizes)]
    return x.reshape(sizes)


def _transpose(node: OnnxNode, x: Any) -> Any:
    return x.permute(node["perm"] or list(reversed(range(x.dim()))))


def _flatten(node: OnnxNode, x: Any) -> Any:
    axis = node["axis"] + (x.dim() if node["axis"] < 0 else 0)
    return x.reshape(x.shape[:axis].numel(), -1)


def _squeeze(node: OnnxNode, x: Any, axes: Any = None) -> Any:
    found = node.axes(axes)
    return torch.squeeze(x) if found is None else torch.squeeze(x, tuple(found))


def _unsqueeze(node: OnnxNode, x: Any, axes: Any = None) -> Any:
    found = node.axes(axes) or []
    for axis in sorted(axis % (x.dim() + len(found)) for axis in found):
        x = x.unsqueeze(axis)
    return x


def _split(node: OnnxNode, x: Any, sizes: Any = None) -> Any:
    axis, parts = node["axis"], len(node.outputs)
    found = node.axes(sizes, "split")
    if found is None:
        size = -(-x.shape[axis] // parts)
        found = [min(size, x.shape[axis] - place * size) for place in range(parts)]
    return tuple(torch.split(x, found, axis))


def _slice(node: OnnxNode, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Any:
    begin, end = (node.axes(one, what) or [] for one, what in ((starts, "starts"), (ends, "ends")))
    along = node.axes(axes) or list(range(len(begin)))
    strides = [1] * len(begin) if steps is None else node.whole(steps, "steps")
    for first, last, axis, step in zip(begin, end, along, strides, strict=True):
        size = x.shape[axis]
        if step < 0:
            x = x.index_select(axis, torch.tensor(range(size)[first : None if last < -size else last : step]))
        else:
            x = x[(*[slice(None)] * (axis % x.dim()), slice(max(first, -size), max(last, -size), step))]
    return x


def _gather(node: OnnxNode, x: Any, places: Any) -> Any:
    """Select one place by a view, rows of a table as an embedding, else by an index."""
    axis = node["axis"] % x.dim()
    if not isinstance(places, torch.Tensor):
        found = node.whole(places, "places")
        if places.ndim == 0:
            return x.select(axis, found[0])
        if len(found) == 1:
            sizes = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
            return x.narrow(axis, found[0] % x.shape[axis], 1).reshape(sizes)
        places = torch.tensor(found).reshape(places.shape)
    if axis == 0 and x.dim() == 2 and 0 in node.weights:
        return functional.embedding(places, x)
    return x[(*[slice(None)] * axis, places)]


def _gather_nd(node: OnnxNode, x: Any, places: Any) -> Any:
    node.only(batch_dims=0)
    return x[places.unbind(-1)]


def _gather_elements(node: OnnxNode, x: Any, places: Any) -> Any:
    """Gather as PyTorch does, which counts no place from the end; that changes no size."""
    return torch.gather(x, node["axis"], places)


def _scatter_elements(node: OnnxNode, x: Any, places: Any, values: Any) -> Any:
    axis, how = node["axis"], node["reduction"] or "none"
    if how == "none":
        return torch.scatter(x, axis, places, values)
    return torch.scatter_reduce(x, axis, places, values, _REDUCTIONS[how])


def _scatter_nd(node: OnnxNode, x: Any, places: Any, values: Any) -> Any:
    how = node["reduction"] or "none"
    if how not in ("none", "add"):
        node.refuse(f"reduces by {how}")
    return torch.index_put(x, places.unbind(-1), values, accumulate=how == "add")


def _expand(node: OnnxNode, x: Any, shape: Any) -> Any:
    return x.expand(torch.broadcast_shapes(x.shape, node.whole(shape, "shape")))


def _tile(node: OnnxNode, x: Any, repeats: Any) -> Any:
    return x.repeat(node.whole(repeats, "repeats"))


def _pad(node: OnnxNode, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    given = node.axes(pads, "pads") or []
    along = list(range(x.dim())) if axes is None else [axis % x.dim() for axis in node.whole(axes, "axes")]
    sides = {axis: (given[place], given[place + len(along)]) for place, axis in enumerate(along)}
    last = min((axis for axis, pair in sides.items() if any(pair)), default=x.dim())
    flat = [size for axis in reversed(range(last, x.dim())) for size in sides.get(axis, (0, 0))]
    if not flat:
        return x
    mode = _PADS[node["mode"]]
    if mode != "constant":
        if len(flat) // 2 > x.dim() - 1:
            node.refuse(f"pads every axis by {node['mode']}")
        return functional.pad(x, flat, mode)
    filling = node["value"] if value is None else value
    if isinstance(filling, torch.Tensor):
        node.refuse("takes what it pads with from the values of a tensor")
    return functional.pad(x, flat, value=float(filling or 0) if x.is_floating_point() else int(filling or 0))


def _blocks(node: OnnxNode, x: Any) -> Any:
    """Move channels into pixels, in either order of ONNX; that of ``CRD`` is PyTorch's pixel shuffle."""
    size = node["blocksize"]
    if node["mode"] == "CRD":
        return (functional.pixel_shuffle if node.op == "DepthToSpace" else functional.pixel_unshuffle)(x, size)
    many, channels, height, width = x.shape
    if node.op == "SpaceToDepth":
        parts = x.reshape(many, channels, height // size, size, width // size, size).permute(0, 3, 5, 1, 2, 4)
        return parts.reshape(many, channels * size**2, height // size, width // size)
    parts = x.reshape(many, size, size, channels // size**2, height, width).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(many, channels // size**2, height * size, width * size)


def _constant_of_shape(node: OnnxNode, shape: Any) -> Any:
    value = node["value"]
    sizes = node.whole(shape, "shape")
    if value is None:
        return torch.zeros(sizes)
    return torch.full(sizes, value.reshape(-1)[0].item(), dtype=torch_type(number_of(value), node.refuse))


def _range(node: OnnxNode, start: Any, limit: Any, step: Any) -> Any:
    if any(isinstance(one, torch.Tensor) for one in (start, limit, step)):
        node.refuse("takes its ends from the values of a tensor, which only a run knows")
    return torch.arange(start.item(), limit.item(), step.item())


def _one_hot(node: OnnxNode, places: Any, depth: Any, values: Any) -> Any:
    size = node.whole(depth, "depth")[0]
    off, on = torch_tensor(values, node.refuse).reshape(-1) if isinstance(values, np.ndarray) else values.reshape(-1)
    axis = node["axis"] % (places.dim() + 1)
    numbers = torch.arange(size).reshape([size if place == axis else 1 for place in range(places.dim() + 1)])
    places = places.long().unsqueeze(axis)
    return torch.where(torch.where(places < 0, places + size, places) == numbers, on, off)


def _triangle(node: OnnxNode, x: Any, diagonal: Any = None) -> Any:
    k = 0 if diagonal is None else node.whole(diagonal, "diagonal")[0]
    return torch.triu(x, k) if node["upper"] else torch.tril(x, k)


def _eye(node: OnnxNode, x: Any) -> Any:
    node.only(k=0)
    return torch.eye(*x.shape, dtype=x.dtype if node["dtype"] is None else torch_type(node["dtype"], node.refuse))


RULES: Rules = {
    "Reshape": Rule(_reshape, (1,)), "Transpose": Rule(_transpose), "Flatten": Rule(_flatten),
    "Squeeze": Rule(_squeeze, (1,)), "Unsqueeze": Rule(_unsqueeze, (1,)),
    "Concat": Rule(lambda node, *given: torch.cat(given, node["axis"])), "Split": Rule(_split, (1,)),
    "Slice": Rule(_slice, (1, 2, 3, 4)), "Gather": Rule(_gather, (1,)), "GatherND": Rule(_gather_nd),
    "GatherElements": Rule(_gather_elements), "ScatterElements": Rule(_scatter_elements),
    "ScatterND": Rule(_scatter_nd),
    "Expand": Rule(_expand, (1,)), "Tile": Rule(_tile, (1,)), "Pad": Rule(_pad, (1, 2, 3)),
    "DepthToSpace": Rule(_blocks), "SpaceToDepth": Rule(_blocks), "ConstantOfShape": Rule(_constant_of_shape, (0,)),
    "Range": Rule(_range, (0, 1, 2)), "OneHot": Rule(_one_hot, (1, 2)), "Trilu": Rule(_triangle, (1,)),
    "EyeLike": Rule(_eye),
}  # fmt: skip
