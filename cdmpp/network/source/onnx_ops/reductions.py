"""Operators of ONNX that join elements along axes: sums, extremes, softmax, sorts."""

from __future__ import annotations

from typing import Any

import torch

from cdmpp.network.source.onnx_ops.node import OnnxNode, Rule, Rules

_SINCE_ONE_AXIS = 13
"""Set from which a softmax is of one axis; before, of all from one on."""


def _reduced(function: Any) -> Any:
    def run(node: OnnxNode, x: Any, axes: Any = None) -> Any:
        found = node.axes(axes)
        if not found and node["noop_with_empty_axes"]:
            return x
        return function(x, tuple(found or range(x.dim())), bool(node["keepdims"]))

    return Rule(run, (1,))


def _product(x: Any, axes: tuple[int, ...], keeps: bool) -> Any:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = torch.prod(x, axis, keeps)
    return x


def _softmax(node: OnnxNode, x: Any) -> Any:
    function = torch.log_softmax if node.op == "LogSoftmax" else torch.softmax
    if node.opset >= _SINCE_ONE_AXIS:
        return function(x, node["axis"])
    axis = node["axis"] % x.dim()
    return function(x, axis) if axis == x.dim() - 1 else function(x.flatten(axis), axis).reshape(x.shape)


def _extreme(node: OnnxNode, x: Any) -> Any:
    node.only(select_last_index=0)
    function = torch.argmax if node.op == "ArgMax" else torch.argmin
    return function(x, node["axis"], bool(node["keepdims"]))


def _cumulative(node: OnnxNode, x: Any, axis: Any) -> Any:
    node.only(exclusive=0, reverse=0)
    return torch.cumsum(x, node.whole(axis, "axis")[0], dtype=x.dtype)


def _top(node: OnnxNode, x: Any, many: Any = None) -> Any:
    (k,) = node.axes(many, "k") or [1]
    largest, ordered = node["largest"], node["sorted"]
    return tuple(torch.topk(x, k, node["axis"], largest is None or bool(largest), ordered is None or bool(ordered)))


RULES: Rules = {
    "ReduceSum": _reduced(torch.sum), "ReduceMean": _reduced(torch.mean), "ReduceMax": _reduced(torch.amax),
    "ReduceMin": _reduced(torch.amin), "ReduceProd": _reduced(_product), "ReduceLogSumExp": _reduced(torch.logsumexp),
    "ReduceL1": _reduced(lambda x, axes, keeps: torch.sum(torch.abs(x), axes, keeps)),
    "ReduceL2": _reduced(lambda x, axes, keeps: torch.sqrt(torch.sum(x * x, axes, keeps))),
    "ReduceSumSquare": _reduced(lambda x, axes, keeps: torch.sum(x * x, axes, keeps)),
    "ReduceLogSum": _reduced(lambda x, axes, keeps: torch.log(torch.sum(x, axes, keeps))),
    "Softmax": Rule(_softmax), "LogSoftmax": Rule(_softmax), "ArgMax": Rule(_extreme), "ArgMin": Rule(_extreme),
    "CumSum": Rule(_cumulative, (1,)), "TopK": Rule(_top, (1,)),
}  # fmt: skip
