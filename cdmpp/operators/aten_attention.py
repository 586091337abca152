"""Attention of an exported graph -> the operators that it is."""

from __future__ import annotations

import math
from typing import Any

from cdmpp.operators.aten_layout import dtype_of, shape_of
from cdmpp.operators.operator import EagerOperator


def attention_of(node: Any) -> tuple[EagerOperator, ...]:
    """Return calls that take as long as if nobody had fused it."""
    query, key, value = (arg.meta["val"] for arg in node.args[:3])
    *leading, rows, inner = shape_of(query)
    many, others, dtype = math.prod(leading), shape_of(key)[-2], dtype_of(query)
    first = {"batch": many, "rows": rows, "inner": inner, "cols": others, "transposed": 1}
    last = {"batch": many, "rows": rows, "inner": others, "cols": shape_of(value)[-1]}
    weights = {"rows": many * rows, "cols": others}
    steps = [EagerOperator("bmm", first, dtype), EagerOperator("mul_scalar", weights, dtype)]
    mask, _, causal = (*node.args[3:6], *[None] * (6 - len(node.args)))[:3]
    if mask is not None or causal or {"is_causal", "attn_mask"} & {key for key, given in node.kwargs.items() if given}:
        steps.append(EagerOperator("add_broadcast", weights, dtype))
    return (*steps, EagerOperator("softmax", weights, dtype), EagerOperator("bmm", last, dtype))


def drops(node: Any) -> bool:
    """Return True if the attention drops some of its weights."""
    return bool(node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p"))
