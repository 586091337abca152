"""What eager PyTorch really runs on a CPU in one training step: the truth that predicted calls are compared with."""

from __future__ import annotations

import weakref
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import torch

from cdmpp.network.eager.step import read_step
from cdmpp.network.workload import Workload
from tests.network.dispatch_log import DispatchLog

aten = torch.ops.aten
NAMES = {
    aten.gelu.default: "gelu", aten.silu.default: "silu", aten.relu.default: "relu", aten.tanh.default: "tanh",
    aten._softmax.default: "softmax", aten._safe_softmax.default: "softmax", aten._to_copy.default: "cast",
    aten.native_layer_norm.default: "layer_norm",
}  # fmt: skip
"""Operators beside products that are compared: those that run in the forward pass, or again."""
FUSED = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: "attention",
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: "attention_backward",
}


def products(func: Any, args: tuple[Any, ...], out: Any) -> list[tuple[Any, ...]]:
    """The sizes of a product or of attention, and the elements of some other operators."""
    if func in (aten.addmm.default, aten.mm.default):
        x, y = args[-2:]
        return [("product", 1, x.shape[0], x.shape[1], y.shape[1], str(out.dtype))]
    if func is aten.linear.default:  # with gradients off it is no other operator
        return [("product", 1, args[0].numel() // args[0].shape[-1], *args[1].shape[::-1], str(out.dtype))]
    if func in (aten.bmm.default, aten.baddbmm.default):
        x, y = args[-2:]
        return [("product", x.shape[0], x.shape[1], x.shape[2], y.shape[2], str(out.dtype))]
    if func in FUSED:
        q, k, v = args[:3] if FUSED[func] == "attention" else args[1:4]
        causal = dict(enumerate(args)).get(4 if FUSED[func] == "attention" else 7, False)
        return [(FUSED[func], *q.shape[:3], *k.shape[1:], v.shape[3], bool(causal), str(q.dtype))]
    if func in NAMES:
        first = out[0] if isinstance(out, tuple) else out
        return [(NAMES[func], first.numel(), str(first.dtype))]
    return []


Log = partial(DispatchLog, products)
"""Counts products by their sizes, and some other operators by their elements."""


class Kept:
    """What autograd keeps: it goes with the part of its graph that nothing needs any more."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Step(NamedTuple):
    """One training step."""

    forward: Counter[tuple[Any, ...]]
    backward: Counter[tuple[Any, ...]]
    saved_bytes: int


def real_step(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Step:
    """Of ``model(*inputs).sum()``, run here."""
    kept: weakref.WeakSet[Kept] = weakref.WeakSet()
    own = {value.untyped_storage().data_ptr() for value in (*model.parameters(), *model.buffers(), *inputs)}

    def pack(value: torch.Tensor) -> Kept:
        kept.add(one := Kept(value.detach()))  # a result with its graph would hold that and itself
        return one

    with Log() as forward, torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.value):
        loss = model(*inputs).sum()
    storages = {one.value.untyped_storage().data_ptr(): one.value.untyped_storage().nbytes() for one in kept}
    saved = sum(size for key, size in storages.items() if key not in own)
    with Log() as backward:
        loss.backward()
    return Step(forward.seen, backward.seen, saved)


def predicted_step(
    model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], kind: str = "cpu", attention: str = "auto"
) -> Step:
    """The same as ``read_step`` has it."""
    asked = {"loss": lambda output: output.sum(), "optimizer": None, "attention": attention}
    read = read_step(Workload(model, inputs, mode="training_step", **asked), kind)
    made = read.step
    counted = {"forward": Counter(), "backward": Counter()}
    for call in made.calls:
        operator = read.operators[call.call.task_id]
        if operator.kind.family in ("linear", "bmm"):
            counted[call.phase]["product", *operator.matmul, f"torch.{operator.dtype}"] += 1
        elif operator.kind.family == "attention":
            sizes = [operator[name] for name in ("batch", "heads", "rows")]
            sizes += [operator["kv_heads"] or operator["heads"], operator["cols"], operator["inner"]]
            name = operator.name.removeprefix("flash_")
            sizes += [operator["value"] or operator["inner"], bool(operator["causal"]), f"torch.{operator.dtype}"]
            counted[call.phase][name, *sizes] += 1
        elif operator.name in NAMES.values() and (call.phase == "forward" or call.is_recomputed):
            counted[call.phase][operator.name, operator["rows"] * operator["cols"], f"torch.{operator.dtype}"] += 1
    return Step(counted["forward"], counted["backward"], made.saved_activation_bytes)
