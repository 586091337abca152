"""Calls of a training step as PyTorch dispatches them on a CPU, and as they are read: by kind, elements and type."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch import nn

from cdmpp.network.eager.step import read_step
from cdmpp.network.source.in_type import floats_in
from cdmpp.network.workload import Workload
from cdmpp.operators.aten_layout import dtype_of
from cdmpp.operators.operator import EagerOperator
from cdmpp.programs.training.loss import with_loss
from tests.network.dispatch_log import DispatchLog

Calls = Counter[tuple[str, int, str]]
"""(kind, elements of the result, type of the result) -> calls."""
KINDS = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), "product"),
    **dict.fromkeys(
        ("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit"), "norm"
    ),
    **dict.fromkeys(("native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward"), "norm"),
    **dict.fromkeys(("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"), "softmax"),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool2d_with_indices_backward"), "pool"),
    **dict.fromkeys(("mean", "sum", "nll_loss_forward"), "reduce"),
    **dict.fromkeys(("embedding", "embedding_dense_backward"), "embedding"),
    "_to_copy": "cast",
    **dict.fromkeys(("clone", "copy_", "stack", "cat", "nll_loss_backward", "fill_", "zeros", "new_zeros"), "copy"),
    **dict.fromkeys(("upsample_nearest2d", "upsample_nearest2d_backward", "triu", "arange", "full"), "copy"),
    **dict.fromkeys(("ones", "ones_like", "full_like", "zero_", "slice_backward", "select_backward"), "copy"),
}
"""Operator of ATen -> kind; those that are not here are elementwise."""
NAMES = {
    **dict.fromkeys(("linear", "bmm"), "product"),
    **dict.fromkeys(("conv2d", "conv2d_image_gradient", "conv2d_filter_gradient"), "conv"),
    **dict.fromkeys(("layer_norm", "batch_norm", "batch_norm_train", "batch_norm_gradient"), "norm"),
    **{"softmax": "softmax", "mean": "reduce"},
    **dict.fromkeys(("max_pool2d", "avg_pool2d"), "pool"), "embedding": "embedding",
    **dict.fromkeys(("copy", "permute", "transpose"), "copy"),
}  # fmt: skip
"""The same of framework operators."""
AS = {
    "embedding_dense_backward": ("embedding", "copy"),
    "max_pool2d_with_indices_backward": ("pool",),
}
"""Operators of a backward pass -> the kinds of calls that are read for each, of as many elements as its gradient."""
NOTHING = ("_unsafe_view", "empty_like", "detach", "ones_like")
"""Operators that move nothing, though they are no views by their schemas."""


def kinds_run(func: Any, args: Any, out: Any) -> list[tuple[str, int, str]]:
    """Kinds, elements and types of what a call runs; nothing of views."""
    name = func._schema.name.removeprefix("aten::")
    first = next((one for one in torch.utils._pytree.tree_leaves(out) if isinstance(one, torch.Tensor)), None)
    if first is None or func.is_view or func.namespace != "aten" or not first.numel() or name in NOTHING:
        return []
    found = _kinds(name, args, out, first)
    return [(kind, one.numel() if size is None else size, dtype_of(one)) for kind, one, size in found]


def _kinds(name: str, args: Any, out: Any, first: torch.Tensor) -> list[tuple[str, torch.Tensor, int | None]]:
    """Kinds, tensors of as many elements and of the type, and elements where they are others."""
    if name == "convolution_backward":
        return [(kind, one, None) for kind, one in zip(("conv", "conv", "reduce"), out, strict=True) if one is not None]
    if kinds := AS.get(name, ()):
        return [(kind, first if kind == "copy" else args[0], None) for kind in kinds]
    if name == "convolution":
        return [("conv", first, None), *([("elementwise", first, None)] if args[2] is not None else [])]
    if name in ("_softmax_backward_data", "_log_softmax_backward_data"):  # a product, then as the forward pass
        return [("elementwise", first, None), ("softmax", first, None)]
    if name == "mse_loss":  # differences, then their mean
        return [("elementwise", args[0], None), ("reduce", first, None)]
    if name.startswith("upsample"):  # as a copy that moves as much
        return [("copy", first, (first.numel() + args[0].numel()) // 2)]
    return [(KINDS.get(name, "elementwise"), first, None)]


def real_step(model: nn.Module, inputs: tuple[torch.Tensor, ...], loss: str, precision: str) -> dict[str, Calls]:
    """Run a step here, without an update: calls of its forward and its backward pass."""
    if precision == "bf16":
        model, inputs = model.bfloat16(), floats_in(inputs, "bfloat16")
    module, arguments = with_loss(model.train(), inputs, loss)
    if precision == "bf16":
        arguments = floats_in(arguments, "bfloat16")
    with DispatchLog(kinds_run) as forward, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-autocast"):
        result = module(*arguments)[0]
    with DispatchLog(kinds_run) as backward:
        result.backward()
    return {"forward": forward.seen, "backward": backward.seen}


def read_calls(model: nn.Module, inputs: tuple[torch.Tensor, ...], loss: str, precision: str) -> dict[str, Calls]:
    """Return the same of a step that is read."""
    given = Workload(model.train(), inputs, precision=precision, loss=loss, optimizer=None, mode="training_step")
    read, found = read_step(given, "cpu"), {"forward": Counter(), "backward": Counter()}
    for call in read.step.calls:
        operator = read.operators[call.call.task_id]
        found[call.phase][kind_of(operator), elements_of(operator), operator.dtype] += 1
    return found


def kind_of(operator: EagerOperator) -> str:
    """Return the kind of a framework operator."""
    if operator.name == "copy" and operator.reads:
        return "cast"
    return NAMES.get(operator.name, "elementwise")


def elements_of(operator: EagerOperator) -> int:
    """Count the elements of its result."""
    return math.ceil(operator.elements or operator.written_elements)
