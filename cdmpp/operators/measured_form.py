"""Operators of types that nobody measured -> the operator that is measured in their place."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.operators.operator import PRODUCTS, EagerOperator


def measured_form(operator: EagerOperator, has_bfloat16: bool = True) -> EagerOperator:
    """Return the operator that takes about as long and that was measured; itself where it was.

    A matrix unit reads as many bytes a cycle of each type: a product in TF32 takes as long as one in bfloat16 of twice
    the inner size, one in float8 as long as one of half. Grouped convolutions have kernels without matrix units.

    Args:
        operator: one of any type.
        has_bfloat16: whether the device has units that multiply bfloat16; else its products take as long as those of
            float32.
    """
    is_product = operator.kind.family in PRODUCTS
    if operator.dtype in ("tf32", "float8"):
        if operator.sizes.get("groups", 1) > 1:
            return replace(operator, dtype=operator.result_dtype)
        axis = "in_channels" if operator.name == "conv2d" else "inner"
        size = 2 * operator[axis] if operator.dtype == "tf32" else max(operator[axis] // 2, 1)
        operator = replace(operator, dtype="bfloat16", sizes={**operator.sizes, axis: size})
    if is_product and operator.dtype == "bfloat16" and not has_bfloat16:
        return replace(operator, dtype="float32")
    return operator
