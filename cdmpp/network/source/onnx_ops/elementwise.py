"""Operators of ONNX that compute each element by itself."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional

from cdmpp.network.source.onnx_ops.node import OnnxNode, Rule, Rules
from cdmpp.network.source.onnx_types import torch_type

_SAME_NAME = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Log Neg Round Sigmoid Sign Sin Sinh Sqrt Tan Tanh"
)
_PLAIN = {
    **{name: getattr(torch, name.lower()) for name in _SAME_NAME.split()},
    "Reciprocal": torch.reciprocal, "Not": torch.logical_not, "IsNaN": torch.isnan, "BitwiseNot": torch.bitwise_not,
    "Relu": functional.relu, "HardSwish": functional.hardswish, "Mish": functional.mish,
    "Softplus": functional.softplus, "Softsign": functional.softsign, "Identity": lambda x: x,
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Equal": torch.eq, "Greater": torch.gt, "Less": torch.lt,
    "GreaterOrEqual": torch.ge, "LessOrEqual": torch.le, "And": torch.logical_and, "Or": torch.logical_or,
    "Xor": torch.logical_xor, "BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor, "Where": torch.where,
}  # fmt: skip
"""Operator without attributes -> the function of PyTorch that is the same."""

_SELU = 1.0507
"""Scale of the operator that normalises itself."""


def _divide(_: OnnxNode, x: Any, y: Any) -> Any:
    return torch.div(x, y) if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _power(_: OnnxNode, x: Any, y: Any) -> Any:
    return torch.pow(x, y).to(x.dtype)


def _modulo(node: OnnxNode, x: Any, y: Any) -> Any:
    return torch.fmod(x, y) if node["fmod"] else torch.remainder(x, y)


def _of_many(function: Any) -> Any:
    return lambda _, *given: functools.reduce(function, given)


def _mean(_: OnnxNode, *given: Any) -> Any:
    return functools.reduce(torch.add, given) / len(given)


def _shift(node: OnnxNode, x: Any, y: Any) -> Any:
    return (torch.bitwise_left_shift if node["direction"] == "LEFT" else torch.bitwise_right_shift)(x, y)


def _gelu(node: OnnxNode, x: Any) -> Any:
    return functional.gelu(x, approximate=node["approximate"])


def _biased_gelu(node: OnnxNode, x: Any, bias: Any = None) -> Any:
    return functional.gelu(x if bias is None else x + bias, approximate="tanh" if node.op == "FastGelu" else "none")


def _swish(node: OnnxNode, x: Any) -> Any:
    return functional.silu(x) if node["alpha"] == 1 else x * torch.sigmoid(node["alpha"] * x)


def _clip(node: OnnxNode, x: Any, low: Any = None, high: Any = None) -> Any:
    low, high = (node[name] if given is None else given for name, given in (("min", low), ("max", high)))
    if low is None and high is None:
        return x
    kind = float if x.is_floating_point() else int
    low, high = (one if one is None or isinstance(one, torch.Tensor) else kind(one) for one in (low, high))
    return torch.clamp(x, low, high)


def _hard_sigmoid(node: OnnxNode, x: Any) -> Any:
    if abs(node["alpha"] - 1 / 6) < 1e-6 and node["beta"] == 0.5:
        return functional.hardsigmoid(x)
    return torch.clamp(x * node["alpha"] + node["beta"], 0, 1)


def _selu(node: OnnxNode, x: Any) -> Any:
    if abs(node["gamma"] - _SELU) > 1e-4:
        node.refuse(f"has gamma={node['gamma']:g}, and PyTorch's own operator only {_SELU}")
    return functional.selu(x)


def _shrink(node: OnnxNode, x: Any) -> Any:
    if node["bias"] == node["lambd"]:
        return functional.softshrink(x, node["lambd"])
    node.only(bias=0.0)
    return functional.hardshrink(x, node["lambd"])


def _is_infinite(node: OnnxNode, x: Any) -> Any:
    if node["detect_positive"] and node["detect_negative"]:
        return torch.isinf(x)
    return torch.isposinf(x) if node["detect_positive"] else torch.isneginf(x)


def _parametric(_: OnnxNode, x: Any, slope: Any) -> Any:
    return torch.where(x > 0, x, x * slope) if slope.numel() > 1 else functional.prelu(x, slope.reshape(1))


def _cast(node: OnnxNode, x: Any) -> Any:
    return x.to(torch_type(node["to"], node.refuse))


def _dropout(node: OnnxNode, x: Any, *_: Any) -> Any:
    node.one_result()
    return x


RULES: Rules = {
    **{name: Rule(lambda _, *given, function=function: function(*given)) for name, function in _PLAIN.items()},
    "Div": Rule(_divide), "Pow": Rule(_power), "Mod": Rule(_modulo), "BitShift": Rule(_shift), "Mean": Rule(_mean),
    "Sum": Rule(_of_many(torch.add)), "Max": Rule(_of_many(torch.maximum)), "Min": Rule(_of_many(torch.minimum)),
    "Gelu": Rule(_gelu), "BiasGelu": Rule(_biased_gelu), "FastGelu": Rule(_biased_gelu), "Swish": Rule(_swish),
    "Elu": Rule(lambda node, x: functional.elu(x, node["alpha"])),
    "Celu": Rule(lambda node, x: functional.celu(x, node["alpha"])),
    "LeakyRelu": Rule(lambda node, x: functional.leaky_relu(x, node["alpha"])),
    "ThresholdedRelu": Rule(lambda node, x: functional.threshold(x, node["alpha"], 0)),
    "Selu": Rule(_selu),
    "HardSigmoid": Rule(_hard_sigmoid), "Shrink": Rule(_shrink), "IsInf": Rule(_is_infinite),
    "PRelu": Rule(_parametric),
    "Clip": Rule(_clip, (1, 2)), "Cast": Rule(_cast), "CastLike": Rule(lambda _, x, like: x.to(like.dtype)),
    "Dropout": Rule(_dropout, (1, 2)),
}  # fmt: skip
