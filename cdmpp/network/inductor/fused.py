"""Fused kernels -> the framework operators that they are answered as, which move as much."""

from __future__ import annotations

from cdmpp.network.inductor.kernel import Kernel
from cdmpp.operators.aten_traffic import Traffic, moved
from cdmpp.operators.operator import ELEMENT_BYTES, EagerOperator

FUSED = "kernel fused by Inductor"
"""Operator that nobody measured: fused kernels stand for it."""
_ROWS = (32, 16384)
"""Fewest and most elements that are reduced to one in norms and means that were measured."""
_WHOLE = 0.25
"""Share of what it reads from which on a kernel with a reduction writes its rows, as a norm, and not their sums."""


def operator_for(kernel: Kernel) -> EagerOperator:
    """Return the operator that moves as many bytes: a norm, a mean of rows, or a copy.

    Rows are as long as the kernel's reduction, and as many as make up its bytes. Reductions longer or shorter than
    measured norms count as copies.
    """
    dtype, size = kernel.dtype, ELEMENT_BYTES[kernel.dtype]
    total = max(kernel.moved_bytes, 2 * size)
    if not _ROWS[0] <= kernel.reduction <= _ROWS[1]:
        return moved(Traffic(0, total), dtype)
    cols = kernel.reduction
    if kernel.written_bytes < _WHOLE * total:
        return EagerOperator("mean", {"rows": max(1, round(total / (size * (cols + 1)))), "cols": cols}, dtype)
    rows = max(1, round(total / (2 * size * cols)))
    return EagerOperator("layer_norm", {"rows": rows, "cols": cols, "weights": 0}, dtype)
