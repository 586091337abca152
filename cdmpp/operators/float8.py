"""Products in float8: as torchao runs them, before each both factors are scaled and cast; or as Transformer Engine.

Transformer Engine casts a factor once for all products that read it, by one kernel that writes it along both axes;
with a scale for the whole tensor another one finds its largest value. Weights are cast once a step, which is left out.
"""

from __future__ import annotations

from cdmpp.operators.aten_traffic import Traffic, moved
from cdmpp.operators.operator import EagerOperator

MULTIPLE = 16
"""Rows and columns of a weight have to be multiples of this; layers of others stay as they are."""
_STEPS = {"tensorwise": 5, "rowwise": 8}
"""Kernels that make scales of largest values: in float64 and back, rowwise also rounded to powers of two."""


_ENGINE = ("current", "blocks")
"""Scalings of Transformer Engine."""


def is_of_engine(scaling: str) -> bool:
    """Return True for a scaling of Transformer Engine."""
    return scaling in _ENGINE


def can_be_float8(operator: EagerOperator, scaling: str = "tensorwise") -> bool:
    """Return True for a linear layer that torchao converts, or a product of experts that Transformer Engine does."""
    is_grouped = operator.name == "bmm" and is_of_engine(scaling)
    is_known = operator.name == "linear" or is_grouped
    return is_known and not operator["inner"] % MULTIPLE and not operator["cols"] % MULTIPLE


def casts_of(rows: int, cols: int, dtype: str, scaling: str) -> tuple[EagerOperator, ...]:
    """List the kernels that cast a matrix: its largest value, the scale, the product with it, and the cast.

    Args:
        rows: of the matrix, each of which has a scale where ``scaling`` is ``rowwise``.
        cols: of the matrix.
        dtype: its type.
        scaling: ``tensorwise``, ``rowwise``, ``current`` or ``blocks``.
    """
    if is_of_engine(scaling):
        found = (moved(Traffic(rows * cols, 2 * rows * cols), dtype),) if scaling == "current" else ()
        return (*found, moved(Traffic(3 * rows * cols, 4 * rows * cols), dtype))
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


def casts_before(operator: EagerOperator, scaling: str, of: str = "") -> tuple[EagerOperator, ...]:
    """List the kernels that cast the factors of a product in float8, each by rows along which it is summed.

    Args:
        operator: the product.
        scaling: as of ``casts_of``.
        of: what the product is the gradient of, as ``Gradient.of`` says; empty: it is of the forward pass.
    """
    rows, inner, cols = (operator[name] for name in ("rows", "inner", "cols"))
    dtype = operator.result_dtype
    if is_of_engine(scaling):  # what the gradient of weights reads was cast before, along both axes
        return () if of == "weight" else casts_of(operator.sizes.get("batch", 1) * rows, inner, dtype, scaling)
    return (*casts_of(rows, inner, dtype, scaling), *casts_of(cols, inner, dtype, scaling))
