"""Convolutions, pooling, resizing and normalisations of ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from cdmpp.network.source.onnx_ops.node import OnnxNode, Rule, Rules

_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}

_OF_MODE = {"nearest": ("nearest_mode",), "cubic": ("cubic_coeff_a", "exclude_outside"), "": ("extrapolation_value",)}
"""Attributes of ``Resize`` that only this mode reads; the last is of regions, which are refused."""


def _window(node: OnnxNode, x: Any, kernel: Sequence[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return strides, dilations, and the padding before and behind of each axis of an image."""
    many = len(kernel)
    strides, dilations = (node[name] or [1] * many for name in ("strides", "dilations"))
    pads = list(node["pads"] or [0] * 2 * many)
    if node["auto_pad"] in ("SAME_UPPER", "SAME_LOWER"):
        before, behind = [], []
        for size, step, wide, apart in zip(x.shape[2:], strides, kernel, dilations, strict=True):
            total = max((-(-size // step) - 1) * step + apart * (wide - 1) + 1 - size, 0)
            more, less = total - total // 2, total // 2
            before.append(less if node["auto_pad"] == "SAME_UPPER" else more)
            behind.append(total - before[-1])
        pads = [*before, *behind]
    return list(strides), list(dilations), pads[:many], pads[many:]


def _padded(x: Any, before: Sequence[int], behind: Sequence[int], value: float = 0.0) -> tuple[Any, list[int]]:
    """Return ``x`` and the padding that an operator adds itself: what differs before and behind is padded first."""
    if list(before) == list(behind):
        return x, list(before)
    flat = [size for pair in reversed(list(zip(before, behind, strict=True))) for size in pair]
    return functional.pad(x, flat, value=value), [0] * len(before)


def convolution(node: OnnxNode, x: Any, weight: Any, bias: Any = None) -> Any:
    """Convolve over one axis, two or three."""
    strides, dilations, before, behind = _window(node, x, weight.shape[2:])
    x, pads = _padded(x, before, behind)
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[len(strides) - 1]
    return function(x, weight, bias, strides, pads, dilations, node["group"])


def _transposed(node: OnnxNode, x: Any, weight: Any, bias: Any = None) -> Any:
    node.only(auto_pad="NOTSET")
    strides, dilations, before, behind = _window(node, x, weight.shape[2:])
    more = list(node["output_padding"] or [0] * len(strides))
    if node["output_shape"] is not None:
        node.refuse("says the size of its result: export it with pads")
    function = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[len(strides) - 1]
    if before == behind:
        return function(x, weight, bias, strides, before, more, node["group"], dilations)
    found = function(x, weight, bias, strides, 0, more, node["group"], dilations)
    ends = zip(before, behind, found.shape[2:], strict=True)
    return found[(slice(None), slice(None), *(slice(first, size - last) for first, last, size in ends))]


def _pool(node: OnnxNode, x: Any) -> Any:
    kernel, is_max = node["kernel_shape"], node.op == "MaxPool"
    strides, dilations, before, behind = _window(node, x, kernel)
    node.one_result()
    if is_max:
        x, pads = _padded(x, before, behind, float("-inf"))
        largest = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[len(kernel) - 1]
        return largest(x, kernel, strides, pads, dilations, bool(node["ceil_mode"]))
    if before != behind and not node["count_include_pad"]:
        node.refuse("pads one side more than the other and does not count that")
    if set(dilations) != {1}:
        node.refuse("is dilated")
    x, pads = _padded(x, before, behind)
    function = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[len(kernel) - 1]
    return function(x, kernel, strides, pads, bool(node["ceil_mode"]), bool(node["count_include_pad"]))


def _global(node: OnnxNode, x: Any) -> Any:
    axes = tuple(range(2, x.dim()))
    if node.op == "GlobalMaxPool":
        return torch.amax(x, axes, keepdim=True)
    return functional.adaptive_avg_pool2d(x, 1) if x.dim() == 4 else torch.mean(x, axes, keepdim=True)


def _resize(node: OnnxNode, x: Any, _region: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    mode, places = node["mode"], node["coordinate_transformation_mode"]
    node.read.update(name for kind, names in _OF_MODE.items() if kind != mode for name in names)
    if node["axes"] is not None or node["antialias"] or node["keep_aspect_ratio_policy"] not in (None, "stretch"):
        node.refuse("has axes, antialias or a policy of its own")
    if scales is None and sizes is None:
        scales = _region  # of sets before 11
    wanted: dict[str, Any]
    factors: list[float] = []
    if sizes is not None:
        size = node.whole(sizes, "sizes")[2:]
        wanted = {"size": size}
    elif isinstance(scales, torch.Tensor):
        node.refuse("takes its scales from the values of a tensor, which only a run knows")
    else:
        factors += [float(one) for one in scales.tolist()][2:]
        size = [int(one * factor) for one, factor in zip(x.shape[2:], factors, strict=True)]
        wanted = {"scale_factor": factors}
    if mode == "nearest":
        _check_nearest(node, places, x.shape[2:], size)
        return functional.interpolate(x, **wanted)
    aligned = places == "align_corners"
    if places not in ("align_corners", "half_pixel", "pytorch_half_pixel", None):
        node.refuse(f"has coordinate_transformation_mode={places}")
    if places == "pytorch_half_pixel" and 1 in size:
        node.refuse(f"makes one pixel by {places}, which PyTorch no longer does")
    if mode == "cubic":
        node.only(cubic_coeff_a=-0.75, exclude_outside=0)
    named = "bicubic" if mode == "cubic" else _MODES[x.dim() - 2]
    if aligned and "scale_factor" in wanted:
        if any(one * factor % 1 for one, factor in zip(x.shape[2:], factors, strict=True)):
            node.refuse("aligns the corners of an image that ends within a pixel: export it with sizes")
        wanted = {"size": size}  # a scale and aligned corners say two things
    return functional.interpolate(x, mode=named, align_corners=aligned, **wanted)


def _check_nearest(node: OnnxNode, places: str | None, old: Sequence[int], new: Sequence[int]) -> None:
    """Refuse a nearest pixel that is not the one that PyTorch takes."""
    rounding = node["nearest_mode"] or "floor"
    is_whole = all(one % other == 0 for one, other in zip(new, old, strict=True))
    if (places or "asymmetric", rounding) != ("asymmetric", "floor") and not (
        is_whole and places == "half_pixel" and rounding.startswith("round_")
    ):
        node.refuse(f"takes the nearest pixel by {places}, {rounding}: export it with asymmetric, floor")


def _sampled(node: OnnxNode, x: Any, grid: Any) -> Any:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(node["mode"], node["mode"])
    return functional.grid_sample(x, grid, mode, node["padding_mode"], bool(node["align_corners"]))


def _batch_norm(node: OnnxNode, x: Any, weight: Any, bias: Any, mean: Any, variance: Any) -> Any:
    node.only(training_mode=0, spatial=1)
    return functional.batch_norm(x, mean, variance, weight, bias, False, 0.0, node["epsilon"])


def _instance_norm(node: OnnxNode, x: Any, weight: Any, bias: Any) -> Any:
    return functional.instance_norm(x, None, None, weight, bias, True, 0.0, node["epsilon"])


def _layer_norm(node: OnnxNode, x: Any, weight: Any, bias: Any = None) -> Any:
    node.one_result()
    axes = x.shape[node["axis"] % x.dim() :]
    function = functional.layer_norm if node.op == "LayerNormalization" else None
    if function is None:
        return functional.rms_norm(x, tuple(axes), weight.expand(axes), node["epsilon"])
    return function(x, tuple(axes), weight.expand(axes), None if bias is None else bias.expand(axes), node["epsilon"])


def _skip_norm(node: OnnxNode, x: Any, skip: Any, weight: Any, shift: Any = None, bias: Any = None) -> Any:
    node.one_result()
    x = x + skip if bias is None else x + skip + bias
    return functional.layer_norm(x, x.shape[-1:], weight, shift, node["epsilon"] or 1e-12)


def _group_norm(node: OnnxNode, x: Any, weight: Any, bias: Any) -> Any:
    groups = node["num_groups"]
    if weight.shape[0] != x.shape[1]:  # sets before 21 have one of each for a group
        weight, bias = (one.repeat_interleave(x.shape[1] // groups) for one in (weight, bias))
    return functional.group_norm(x, groups, weight, bias, node["epsilon"])


def _local_response(node: OnnxNode, x: Any) -> Any:
    return functional.local_response_norm(x, node["size"], node["alpha"], node["beta"], node["bias"])


RULES: Rules = {
    "Conv": Rule(convolution), "ConvTranspose": Rule(_transposed), "MaxPool": Rule(_pool), "AveragePool": Rule(_pool),
    "GlobalAveragePool": Rule(_global), "GlobalMaxPool": Rule(_global), "Resize": Rule(_resize, (1, 2, 3)),
    "Upsample": Rule(_resize, (1,)), "GridSample": Rule(_sampled), "BatchNormalization": Rule(_batch_norm),
    "InstanceNormalization": Rule(_instance_norm), "LayerNormalization": Rule(_layer_norm),
    "RMSNormalization": Rule(_layer_norm), "SkipLayerNormalization": Rule(_skip_norm),
    "GroupNormalization": Rule(_group_norm), "LRN": Rule(_local_response),
}  # fmt: skip
