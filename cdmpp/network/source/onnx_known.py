"""Values of an ONNX graph that are known before anything runs: sizes, and what is computed from sizes.

An exporter writes the arithmetic of shapes as operators on short lists of whole numbers. PyTorch does it on the host,
without a kernel; here ONNX's own reference implementation does it once, while a file is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_MOST = 64
"""Elements of a list that the host computes with; longer ones are tensors."""
_MAKERS = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1}
"""Operators whose results may be far larger than what they are given -> the place of the input that says so."""
_NEVER = (
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "EyeLike",
)


def is_known(array: Any) -> bool:
    """Return True for a number, a short list of numbers, or one of pairs, such as the ends of paddings."""
    if not isinstance(array, np.ndarray) or array.size > _MOST:
        return False
    return array.ndim <= 1 or (array.ndim == 2 and 2 in array.shape and array.dtype.kind == "i")


def computed(proto: Any, given: Sequence[Any], opset: int) -> list[Any] | None:
    """Compute a node whose inputs are all known; None where they are not, or where a run makes its result.

    Args:
        proto: ``onnx.NodeProto``.
        given: arrays of NumPy, tensors, or None for inputs that are left out.
        opset: version of the operator set.
    """
    if proto.domain not in ("", "ai.onnx") or proto.op_type in _NEVER:
        return None
    if not all(one is None or is_known(one) for one in given) or _is_large(proto.op_type, given):
        return None
    from onnx.reference import ReferenceEvaluator

    named = {name: one for name, one in zip(proto.input, given, strict=True) if name}
    if proto.op_type == "Unsqueeze" and opset < 13:  # onnx's reference cannot run it
        axes = next(tuple(one.ints) for one in proto.attribute if one.name == "axes")
        return [np.expand_dims(given[0], axes)]
    try:
        return list(ReferenceEvaluator(proto, opsets={"": opset}).run(None, named))
    except Exception:
        return None  # its rule says what is wrong


def sizes_of(proto: Any, x: Any, start: int, end: int | None) -> Any:
    """Return what ``Shape`` or ``Size`` gives of a value, as an array."""
    shape = np.array([int(one) for one in x.shape], np.int64)
    return shape[start:end] if proto.op_type == "Shape" else np.array(int(np.prod(shape)), np.int64)


def _is_large(operator: str, given: Sequence[Any]) -> bool:
    if operator == "Range":
        start, limit, step = (float(one) for one in given)
        return step == 0 or abs((limit - start) / step) > _MOST
    place = _MAKERS.get(operator)
    return place is not None and math.prod(max(int(one), 1) for one in given[place].reshape(-1)) > _MOST
