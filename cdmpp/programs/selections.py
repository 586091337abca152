"""Selections by value while a network is exported: as many are kept as is said, since values play no part.

Detectors keep boxes whose scores are high enough, and of those that overlap one. How many there are decides what runs
behind it: the box head of Faster R-CNN runs on each.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from cdmpp.programs.patch import patched


@contextmanager
def selections_kept(boxes: int | None, decided: set[str]) -> Iterator[None]:
    """Let each mask, ``nonzero`` and non-maximum suppression keep ``boxes`` elements, or all if there are fewer.

    Regions of interest are spread evenly over the levels of a feature pyramid. None: nothing is changed, so an export
    refuses a network that selects by value. Where one did, ``boxes`` is among ``decided``.
    """
    if boxes is None:
        yield
        return
    selection = _Selection(boxes, decided)
    with ExitStack() as stack:
        ops, poolers = (sys.modules.get(f"torchvision.ops.{name}") for name in ("boxes", "poolers"))
        if ops is not None:
            stack.enter_context(patched(ops, "nms", selection.nms))
            stack.enter_context(patched(ops, "batched_nms", ops._batched_nms_coordinate_trick))  # what GPUs run
        if poolers is not None:
            pooled = selection.over_levels(poolers._multiscale_roi_align)
            stack.enter_context(patched(poolers, "_multiscale_roi_align", pooled))
        stack.enter_context(_mode()(selection))
        yield


class _Selection:
    def __init__(self, boxes: int, decided: set[str]) -> None:
        self.boxes, self.levels, self.decided = boxes, 1, decided

    def kept(self, elements: int) -> int:
        self.decided.add("boxes")
        return min(elements, -(-self.boxes // self.levels))

    def nms(self, boxes: Any, scores: Any, iou_threshold: float) -> Any:
        return _nms()(boxes, scores, iou_threshold, self.kept(boxes.shape[0]))

    def over_levels(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def pooled(features: Any, *args: Any, **kwargs: Any) -> Any:
            self.levels = len(features)
            try:
                return original(features, *args, **kwargs)
            finally:
                self.levels = 1

        return pooled

    def places(self, mask: Any) -> Any:
        """Return the places of as many elements of a mask; a scan over all of it stands for finding them."""
        return mask.reshape(-1).cumsum(0)[: self.kept(mask.numel())]


@contextmanager
def regions_pooled() -> Iterator[None]:
    """Let torchvision's pooling of regions of interest be one operator, as where its compiled operators are there."""
    with ExitStack() as stack:
        for name in ("torchvision.ops", "torchvision.ops.roi_align", "torchvision.ops.poolers"):
            if (module := sys.modules.get(name)) is not None:
                stack.enter_context(patched(module, "roi_align", _roi_align(module)))
        yield


def _roi_align(module: Any) -> Callable[..., Any]:
    def roi_align(
        input: Any, boxes: Any, output_size: Any, spatial_scale: float = 1.0, sampling_ratio: int = -1,  # noqa: A002
        aligned: bool = False,  # noqa: ARG001
    ) -> Any:  # fmt: skip
        rois = boxes
        if not hasattr(boxes, "shape"):
            rois = sys.modules["torchvision.ops._utils"].convert_boxes_to_roi_format(boxes)
        height, width = (output_size, output_size) if isinstance(output_size, int) else output_size
        return _pooled()(input, rois, float(spatial_scale), int(height), int(width), int(sampling_ratio))

    return roi_align if not isinstance(getattr(module, "roi_align", None), type(sys)) else module.roi_align


@cache
def _pooled() -> Any:
    """Pooling of regions as an operator of a graph, whose backward pass reads where the regions are."""
    import torch

    schema = "(Tensor input, Tensor rois, float spatial_scale, int height, int width, int sampling_ratio) -> Tensor"

    @torch.library.custom_op("cdmpp::roi_align", mutates_args=(), schema=schema)
    def roi_align(input, rois, spatial_scale, height, width, sampling_ratio):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, A002, ARG001
        return input.new_zeros(rois.shape[0], input.shape[1], height, width)

    @roi_align.register_fake
    def _(input, rois, spatial_scale, height, width, sampling_ratio):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, A002, ARG001
        return input.new_empty(rois.shape[0], input.shape[1], height, width)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
        ctx.save_for_backward(inputs[1])
        ctx.shape = inputs[0].shape

    def backward(ctx: Any, grad: Any) -> Any:
        return grad.new_empty(ctx.shape), None, None, None, None, None

    torch.library.register_autograd("cdmpp::roi_align", backward, setup_context=setup)
    return roi_align


@cache
def _nms() -> Any:
    """Non-maximum suppression that keeps a given number of boxes, as an operator of a graph."""
    import torch

    schema = "(Tensor boxes, Tensor scores, float iou_threshold, int keep) -> Tensor"

    @torch.library.custom_op("cdmpp::nms", mutates_args=(), schema=schema)
    def nms(boxes, scores, iou_threshold, keep):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001
        return scores.argsort(descending=True)[:keep].clone()

    @nms.register_fake
    def _(boxes, scores, iou_threshold, keep):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001
        return boxes.new_empty((keep,), dtype=torch.int64)

    return nms


@cache
def _mode() -> Any:
    """A class of modes in which selections by value have a size."""
    import torch
    from torch.overrides import TorchFunctionMode

    def is_mask(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.dim() > 0

    class Selections(TorchFunctionMode):
        def __init__(self, selection: _Selection) -> None:
            super().__init__()
            self.selection = selection

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is torch.where and len(args) == 1 and not kwargs:
                return (self.selection.places(args[0]),) * max(args[0].dim(), 1)
            if func in (torch.nonzero, torch.Tensor.nonzero):
                places = self.selection.places(args[0])
                if kwargs.get("as_tuple") or len(args) > 1:
                    return (places,) * max(args[0].dim(), 1)
                return places.unsqueeze(-1).expand(-1, args[0].dim())
            if func is torch.Tensor.__getitem__ and is_mask(args[1]):
                x, mask = args
                return x.reshape(math.prod(x.shape[: mask.dim()]), *x.shape[mask.dim() :])[self.selection.places(mask)]
            if func is torch.masked_select or func is torch.Tensor.masked_select:
                return args[0].reshape(-1)[self.selection.places(args[1])]
            return func(*args, **kwargs)

    return Selections
