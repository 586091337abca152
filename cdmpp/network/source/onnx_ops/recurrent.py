"""LSTM, GRU and RNN of ONNX as PyTorch's own layers, whose gates stand in another order."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cdmpp.network.source.onnx_ops.node import OnnxNode, Rule, Rules

_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""Operator -> places among the gates of ONNX of those of PyTorch: i o f c are i f g o; z r h are r z n."""
_USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _layer(node: OnnxNode, weight: Any, inner: Any, bias: Any = None) -> nn.Module:
    """Make the layer: its weights are put in PyTorch's order once, before anything runs."""
    both = node["direction"] == "bidirectional"
    layer: nn.Module = getattr(nn, node.op)(weight.shape[2], inner.shape[2], bias=bias is not None, bidirectional=both)
    order = _ORDER[node.op]
    for side, suffix in zip(range(weight.shape[0]), ("", "_reverse"), strict=False):
        parts = {"weight_ih": weight[side], "weight_hh": inner[side]}
        if bias is not None:
            parts["bias_ih"], parts["bias_hh"] = bias[side].chunk(2)
        for name, one in parts.items():
            gates = one.chunk(len(order))
            with torch.no_grad():
                getattr(layer, f"{name}_l0{suffix}").copy_(torch.cat([gates[place] for place in order]))
    return layer


def _run(
    node: OnnxNode, layer: nn.Module, x: Any, lengths: Any = None, hidden: Any = None, cell: Any = None,
    peepholes: Any = None,
) -> Any:  # fmt: skip
    _check(node, lengths, peepholes)
    is_first = bool(node["layout"])
    x, hidden, cell = (one.transpose(0, 1) if is_first and one is not None else one for one in (x, hidden, cell))
    start = hidden
    if node.op == "LSTM" and (hidden is not None or cell is not None):
        zeros = torch.zeros_like(cell if hidden is None else hidden)
        start = zeros if hidden is None else hidden, zeros if cell is None else cell
    out, last = layer(x, start)
    found = out.unflatten(-1, (2 if node["direction"] == "bidirectional" else 1, -1))
    ends = last if node.op == "LSTM" else (last,)
    if is_first:
        return (found.transpose(0, 1), *(one.transpose(0, 1) for one in ends))
    return (found.transpose(1, 2), *ends)


def _check(node: OnnxNode, lengths: Any, peepholes: Any) -> None:
    if lengths is not None or peepholes is not None:
        node.refuse("has sequences of different lengths, or peepholes, which PyTorch's own layer has not")
    node.only(clip=0.0, input_forget=0)
    if node["direction"] not in ("forward", "bidirectional"):
        node.refuse(f"runs in the direction {node['direction']}, which PyTorch's own layer does not by itself")
    usual = _USUAL[node.op]
    if node["activations"] not in (None, [], usual, usual * 2):
        node.refuse(f"has the activations {', '.join(node['activations'])}")
    if node.op == "GRU" and not node["linear_before_reset"]:
        node.refuse("resets before its product (linear_before_reset=0), which PyTorch's GRU never does")


RULES: Rules = {name: Rule(_run, layer=_layer) for name in _ORDER}
