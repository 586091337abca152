"""Types of the tensors that a call of an exported graph reads, where they are not those of its result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cdmpp.operators.aten_layout import dtype_of
from cdmpp.operators.aten_traffic import inputs_of
from cdmpp.operators.operator import EagerOperator


def with_reads(operator: EagerOperator, node: Any) -> EagerOperator:
    """Return the first operator of a node with the types of the floats that it reads: of a cast, or of a mixed sum.

    Tensors of less than half its elements, such as the weights of a norm, do not count.
    """
    if "rows" not in operator.kind.sizes or "inner" in operator.kind.sizes or operator.name == "embedding":
        return operator
    elements = operator["rows"] * operator["cols"]
    large = [one for one in inputs_of(node) if one.is_floating_point() and 2 * one.numel() > elements]
    types = tuple(dtype_of(one) for one in large)[: operator.kind.inputs]
    return replace(operator, reads=types) if {*types} - {operator.dtype} else operator
