"""Products of rows with one matrix of several each (experts) -> framework operators, whatever the values say."""

from __future__ import annotations

from typing import Any, NamedTuple

from cdmpp.operators.aten_layout import dtype_of, shape_of
from cdmpp.operators.backward import Gradient
from cdmpp.operators.operator import EagerOperator
from cdmpp.programs.experts import IMBALANCE, expert_rows

GROUPED = ("grouped_mm_fallback", "_grouped_mm", "grouped_mm")


class Grouped(NamedTuple):
    """A node runs these operators; the fields are those of ``aten.Calls``."""

    operators: tuple[EagerOperator, ...]
    gradients: tuple[tuple[Gradient, ...] | None, ...]
    note: str


def grouped_of(node: Any) -> Grouped:
    """Return a product for the busiest matrix, if one is, and one for the others, each of as many rows.

    Each has the gradient of its rows and of its matrices, which are one product each.
    """
    x, weights = (arg.meta["val"] for arg in node.args[:2])
    if len(shape_of(weights)) == 2:
        return _of_matrices(node, x, weights)
    (rows, inner), (experts, _, cols) = shape_of(x), shape_of(weights)
    imbalance = node.meta.get(IMBALANCE, 1.0)
    busiest, *others = expert_rows(rows, experts, imbalance)
    served = sum(map(bool, others))
    parts = [(1, busiest)] if imbalance > 1 or not served else []
    if served:
        rest = -(-sum(others) // served) if parts else -(-rows // min(rows, experts))
        parts.append((served if parts else min(rows, experts), rest))
    dtype = dtype_of(x)
    note = f"{imbalance:g} times the mean for the busiest matrix" if imbalance > 1 else "as many rows for each matrix"
    operators = tuple(_product(many, each, inner, cols, dtype) for many, each in parts)
    gradients = tuple(_gradients(many, each, inner, cols, dtype) for many, each in parts)
    return Grouped(operators, gradients, note)


def _of_matrices(node: Any, x: Any, weights: Any) -> Grouped:
    """Return the product that makes the gradients of the matrices: each of its own rows, which are shared evenly."""
    ends = node.args[2] if len(node.args) > 2 else node.kwargs["offs"]
    (rows, inner), (_, cols), (many, *_) = shape_of(x), shape_of(weights), shape_of(ends.meta["val"])
    product = _product(many, rows, -(-inner // many), cols, dtype_of(x))
    return Grouped((product,), (None,), "as many rows for each matrix")


def _product(many: int, rows: int, inner: int, cols: int, dtype: str) -> EagerOperator:
    return EagerOperator("bmm", {"batch": many, "rows": rows, "inner": inner, "cols": cols}, dtype)


def _gradients(many: int, rows: int, inner: int, cols: int, dtype: str) -> tuple[Gradient, ...]:
    of_rows = {"batch": many, "rows": rows, "inner": cols, "cols": inner, "transposed": 1}
    of_matrix = _product(many, inner, rows, cols, dtype)
    return Gradient(EagerOperator("bmm", of_rows, dtype), "inputs"), Gradient(of_matrix, "weight", True)
