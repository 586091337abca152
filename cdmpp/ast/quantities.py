"""Quantities of leaves in their own units, of a table of programs."""

from __future__ import annotations

import numpy as np

from cdmpp.ast.layout import KERNEL_NAMES
from cdmpp.ast.leaf_features import LEAF_NAMES
from cdmpp.ast.table import AstTable

_MARKS = [
    LEAF_NAMES.index(name)
    for name in ("parallel_extent", "vector_lanes", "unrolled_trips", "unroll_limit", "explicit_unroll_flag")
]
_SCHEDULED = np.log2([2.5, 2.5, 2.5, 1.5, 1.5]).astype(np.float32)
"""Features are log2(1 + x): more than one and a half iterations or lanes; more than half a step or flag."""


def leaf_quantity(asts: AstTable, name: str) -> np.ndarray:
    """Return the feature ``name`` of all leaves in its unit, (sum of leaves,)."""
    column = np.asarray(asts.leaf_features[:, LEAF_NAMES.index(name)], np.float64)
    return np.exp2(np.minimum(column, 1000.0)) - 1


def leaf_total(asts: AstTable, values: np.ndarray) -> np.ndarray:
    """Sum over the leaves of each program, (n,)."""
    return np.add.reduceat(values.astype(np.float64), asts.leaf_offsets[:-1]) if len(asts) else np.zeros(0)


def unrolled_steps(asts: AstTable) -> np.ndarray:
    """Count the statements after unrolling, as TVM counts them, of all kernels of each program, (n,)."""
    column = np.asarray(asts.kernel_features[:, KERNEL_NAMES.index("code_steps")], np.float64)
    steps = np.exp2(np.minimum(column, 1000.0)) - 1
    return np.add.reduceat(steps, asts.kernel_offsets[:-1]) if len(asts) else np.zeros(0)


def unscheduled(asts: AstTable) -> np.ndarray:
    """Return (n,) True: no loop is parallel, vectorised or unrolled, and none may be unrolled."""
    marked = np.any(asts.leaf_features[:, _MARKS] > _SCHEDULED, axis=1)
    return leaf_total(asts, np.asarray(marked)) == 0
