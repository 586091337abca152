"""Reads and writes of a node of an exported graph, by its own tensors; and the copy that moves as much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from cdmpp.operators.aten_layout import dtype_of, shape_of, tensors_in
from cdmpp.operators.operator import EagerOperator

_NEAR = 0.02
"""Share of the elements, or bytes, that may be missing or too many in an operator that stands for a call."""


class Traffic(NamedTuple):
    """One call has this traffic, each element counted once."""

    elements: int
    bytes: int

    def __add__(self, other: tuple[Any, ...]) -> Traffic:
        return Traffic(self.elements + other[0], self.bytes + other[1])


def traffic_of(tensors: Sequence[Any]) -> Traffic:
    """Return the traffic of all of ``tensors``; what a stride of zero repeats is one element."""
    counts = [(distinct_elements(value), value.dtype.itemsize) for value in tensors]
    return Traffic(sum(count for count, _ in counts), sum(count * size for count, size in counts))


def distinct_elements(value: Any) -> int:
    """Count the elements of a tensor that lie in memory."""
    return math.prod(size for size, stride in zip(shape_of(value), value.stride(), strict=True) if stride)


def inputs_of(node: Any) -> list[Any]:
    """List the tensors that a node is given."""
    return [value for one in node.all_input_nodes for value in tensors_in(one.meta.get("val"))]


def results_of(node: Any) -> list[Any]:
    """List the tensors that a node makes."""
    return tensors_in(node.meta.get("val"))


def whole_traffic(node: Any) -> Traffic:
    """Return the traffic of a node that reads all that it is given."""
    return traffic_of(inputs_of(node)) + traffic_of(results_of(node))


def moves(operator: EagerOperator, real: Traffic) -> bool:
    """Return True if ``operator`` moves as much as a call does."""
    elements = operator.read_elements + operator.written_elements
    return abs(elements - real.elements) <= _NEAR * real.elements and abs(operator.io_bytes - real.bytes) <= (
        _NEAR * real.bytes
    )


def moved(real: Traffic, dtype: str) -> EagerOperator:
    """Make the copy that moves as many bytes: it stands for a call that nobody measured and that computes little."""
    one = EagerOperator("copy", {"rows": 1, "cols": 1}, dtype)
    return EagerOperator.flat("copy", real.bytes / one.io_bytes, dtype)


def copy_like(node: Any, real: Traffic | None = None) -> EagerOperator:
    """Return ``moved`` of a node, in the type of its result if that is a float; without ``real`` by all tensors."""
    result = results_of(node)[0]
    dtype = dtype_of(result) if result.is_floating_point() else "float32"
    return moved(whole_traffic(node) if real is None else real, dtype)
