"""A product of quantised activations and weights of a byte, as ONNX files write it."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper


def _quantised(name: str, value: str) -> list[Any]:
    return [
        helper.make_node("QuantizeLinear", [value, "scale", "zero"], [f"{name}_q"]),
        helper.make_node("DequantizeLinear", [f"{name}_q", "scale", "zero"], [name]),
    ]


def quantised_product(weight: np.ndarray) -> tuple[list[Any], list[tuple[str, np.ndarray]]]:
    """Return the nodes that make ``y`` of ``x`` and a weight of shape ``(rows, 32)``, and what the file stores."""
    nodes = [
        *_quantised("a", "x"),
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], axis=1),
        helper.make_node("MatMul", ["a", "wd"], ["h"]),
        *_quantised("y", "h"),
    ]
    weights = [
        ("scale", np.array(0.1, np.float32)), ("zero", np.array(0, np.uint8)), ("wq", (10 * weight).astype(np.int8)),
        ("ws", np.full(32, 0.1, np.float32)), ("wz", np.zeros(32, np.int8)),
    ]  # fmt: skip
    return nodes, weights
