"""Pooling, reductions and interpolation of an exported graph -> framework operators; stand-ins where no kind fits."""

from __future__ import annotations

import math
from typing import Any

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators.aten_layout import arguments_of, dtype_of, shape_of
from cdmpp.operators.aten_traffic import Traffic, copy_like, inputs_of, moves, results_of, traffic_of, whole_traffic
from cdmpp.operators.operator import EagerOperator

POOLS = (
    *("max_pool2d", "avg_pool2d", "max_pool2d_with_indices"),
    *("max_pool1d", "avg_pool1d", "max_pool3d", "avg_pool3d", "max_pool3d_with_indices"),
)
REDUCTIONS = tuple(
    "mean sum prod amax amin max min argmax argmin any all var std norm linalg_vector_norm adaptive_avg_pool2d "
    "_adaptive_avg_pool2d".split()
)


def pool_of(node: Any, name: str, place: str) -> tuple[EagerOperator, str]:
    """Return the operator, and what it stands for: an image or a window that is not square may have no kind.

    That of windows over one axis or three has none. ``UnsupportedProgramError`` of a window that is not square, with
    its ``place`` in the model.
    """
    given, out = arguments_of(node), results_of(node)[0]
    x, kernel = given["self"], given["kernel_size"]
    stride, padding, dilation = given.get("stride") or kernel, given.get("padding", 0), given.get("dilation", 1)
    if not name.endswith(("2d", "2d_with_indices")):
        return copy_like(node, traffic_of([x, out])), name
    if any(_pair(one)[0] != _pair(one)[1] for one in (kernel, stride)):
        raise UnsupportedProgramError(f"the pooling {node.name}{place} has a window of {kernel}: square ones alone")
    channels, *image = shape_of(x)[-3:]
    sizes = {"batch": math.prod(shape_of(x)[:-3]), "channels": channels, "in_size": round(math.sqrt(math.prod(image)))}
    sizes |= {"kernel": _pair(kernel)[0], "stride": _pair(stride)[0], "padding": _pair(padding)[0]}
    real = traffic_of([x, out])
    if _pair(dilation) == (1, 1) and _pair(padding)[0] == _pair(padding)[1]:
        kind = "max_pool2d" if "max" in name else "avg_pool2d"
        if operator := _that_moves(real, kind, sizes, dtype_of(x)):
            return operator, ""
    return copy_like(node, real), name


def reduction_of(node: Any, name: str) -> tuple[EagerOperator, str]:
    """Make a mean of as many rows, as long; else what moves as much."""
    x, rows = inputs_of(node)[0], results_of(node)[0].numel()
    operator = _that_moves(whole_traffic(node), "mean", {"rows": rows, "cols": x.numel() // rows}, dtype_of(x))
    return (copy_like(node), name) if operator is None else (operator, "")


def _that_moves(real: Traffic, *operator_is: Any) -> EagerOperator | None:
    """The operator where it can be, and moves as much as the call."""
    try:
        operator = EagerOperator(*operator_is)
    except UnsupportedProgramError:
        return None
    return operator if moves(operator, real) else None


def _pair(value: Any) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return (int(values[0]), int(values[-1]))
