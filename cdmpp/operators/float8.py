"""Linear layers in float8 as torchao runs them: before each product both factors are scaled and cast."""

from __future__ import annotations

from cdmpp.operators.aten_traffic import Traffic, moved
from cdmpp.operators.operator import EagerOperator

MULTIPLE = 16
"""Rows and columns of a weight have to be multiples of this; layers of others stay as they are."""
_STEPS = {"tensorwise": 5, "rowwise": 8}
"""Kernels that make scales of largest values: in float64 and back, rowwise also rounded to powers of two."""


def can_be_float8(operator: EagerOperator) -> bool:
    """Return True for a linear layer that torchao converts."""
    return operator.name == "linear" and not operator["inner"] % MULTIPLE and not operator["cols"] % MULTIPLE


def casts_of(rows: int, cols: int, dtype: str, scaling: str) -> tuple[EagerOperator, ...]:
    """List the kernels that cast a matrix: its largest value, the scale, the product with it, and the cast.

    Args:
        rows: of the matrix, each of which has a scale where ``scaling`` is ``rowwise``.
        cols: of the matrix.
        dtype: its type.
        scaling: ``tensorwise`` or ``rowwise``.
    """
    sizes, scales = {"rows": rows, "cols": cols}, rows if scaling == "rowwise" else 1
    largest = {"rows": scales, "cols": rows * cols // scales}
    return (
        EagerOperator("relu", sizes, dtype),  # the absolute values
        EagerOperator("mean", largest, dtype),
        *(EagerOperator("copy", {"rows": 1, "cols": scales}, "float64") for _ in range(_STEPS[scaling])),
        EagerOperator("copy", sizes, "float32", reads=(dtype,)),
        EagerOperator("mul_scalar", sizes),
        EagerOperator("relu", sizes),  # between the ends of float8
        moved(Traffic(2 * rows * cols, 5 * rows * cols), "float32"),
    )


def casts_before(operator: EagerOperator, scaling: str) -> tuple[EagerOperator, ...]:
    """List the kernels that cast both factors of a linear layer in float8, each by rows along which it is summed."""
    rows, inner, cols = (operator[name] for name in ("rows", "inner", "cols"))
    dtype = operator.result_dtype
    return (*casts_of(rows, inner, dtype, scaling), *casts_of(cols, inner, dtype, scaling))
