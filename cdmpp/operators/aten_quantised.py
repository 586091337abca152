"""Products of quantised factors of an exported graph -> products that move as many bytes; nobody measured any.

Weights of 8 and 4 bits are as large as they are packed: where few rows multiply them, reading them is what takes time.
"""

from __future__ import annotations

import math
from typing import Any

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators.aten_convolution import CONVOLUTIONS
from cdmpp.operators.aten_layout import dtype_of, shape_of
from cdmpp.operators.aten_traffic import results_of
from cdmpp.operators.operator import EagerOperator

QUANTISED = (
    *("_int_mm", "_weight_int8pack_mm", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"),
    "_weight_int4pack_mm_with_scales_and_zeros",
)
PRODUCTS_OF_FLOATS = ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "einsum")
_FEW_ROWS = 64
"""Rows up to which a product with packed weights waits for them; of more rows it computes in the type of the rows."""


def quantised_of(node: Any, name: str) -> tuple[EagerOperator, str]:
    """Return the operator, and what it stands for.

    Whole numbers of 8 bits on both sides are halves of half the inner size: as many bytes, at twice the rate, as tensor
    cores have it. Packed weights become those of as many columns as fit into their bytes, but for many rows.
    """
    x, weight = (arg.meta["val"] for arg in node.args[:2])
    out = results_of(node)[0]
    rows, inner, cols = math.prod(shape_of(x)[:-1]), shape_of(x)[-1], shape_of(out)[-1]
    if name == "_int_mm":
        return _linear(rows, -(-inner // 2), cols, "float16"), "product of int8, int32 out"
    held = weight.numel() * weight.dtype.itemsize
    bits = round(8 * held / (inner * cols))
    waits = rows <= _FEW_ROWS
    kept = -(-held // (inner * x.dtype.itemsize)) if waits else cols
    return _linear(rows, inner, kept, dtype_of(x)), f"product with weights of {bits} bits"


def check_floats(node: Any, name: str, place: str) -> None:
    """Raise ``UnsupportedProgramError`` for a product of whole numbers or truth values, with its ``place``.

    So it does for one of floats of several types, which PyTorch refuses to run, though it exports some.
    """
    given = [one.meta["val"] for one in node.all_input_nodes if hasattr(one.meta.get("val"), "dtype")]
    kinds = {
        str(one.dtype).removeprefix("torch.") for one in given if not (one.is_floating_point() or one.is_complex())
    }
    if name in PRODUCTS_OF_FLOATS and kinds:
        raise UnsupportedProgramError(
            f"{name} ({node.name}{place}) multiplies {', '.join(sorted(kinds))}: such products are answered "
            f"for {', '.join(QUANTISED)} alone; multiply floats, or leave the part out"
        )
    types = sorted({str(one.dtype).removeprefix("torch.") for one in given})
    if name in (*PRODUCTS_OF_FLOATS, *CONVOLUTIONS) and not kinds and len(types) > 1:
        raise UnsupportedProgramError(
            f"{name} ({node.name}{place}) multiplies {' by '.join(types)}, which PyTorch refuses: give weights and "
            "inputs one type, or a precision with autocast, which casts them"
        )


def _linear(rows: int, inner: int, cols: int, dtype: str) -> EagerOperator:
    return EagerOperator("linear", {"rows": rows, "inner": inner, "cols": cols, "bias": 0}, dtype)
