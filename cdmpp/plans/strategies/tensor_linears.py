"""Linear: a linear layer, or the product of experts, as tensor parallelism finds it in a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cdmpp.operators.aten import name_of
from cdmpp.plans.strategies.tensor_rules import permutation_of, shape_of_node
from cdmpp.plans.strategies.tensor_tokens import WHOLE, is_of_experts

PASSING = ("t", "transpose", "permute", "to", "_to_copy", "alias", "detach", "contiguous")
"""Operators between a weight and the product that reads it."""
LOOKUP = "embedding"


class Linear(NamedTuple):
    """A product of what a node reads and a weight."""

    node: Any
    x: Any
    columns: int
    """Axis of the parameter along which its output features lie."""
    parameter: Any
    """Placeholder that the weight comes from."""
    bias: Any
    """Placeholder of the bias; None without one."""

    @property
    def rows(self) -> int:
        """Return the axis of the parameter along which its input features lie."""
        return 2 * len(shape_of_node(self.parameter)) - 3 - self.columns


def linear_of(exported: Any, node: Any, experts: str) -> Linear | None:
    """Return the product of a linear layer, or of experts that ranks divide; None for any other node."""
    if experts != WHOLE and is_of_experts(node):
        found = _parameter(exported, node.args[1])
        return None if found is None else Linear(node, node.args[0], 2 - found[1], found[0], None)
    if node.op != "call_function" or (name := name_of(node)) not in ("linear", "addmm", "mm", "matmul"):
        return None
    if name == "addmm":
        bias, x, weight = node.args[:3]
    else:
        x, weight, bias = (*node.args, None)[:3]
    found = _parameter(exported, weight)
    if found is None or len(shape_of_node(weight)) != 2 or (node.kwargs and name == "addmm"):
        return None
    parameter, is_turned = found
    own = _parameter(exported, bias) if bias is not None else None
    if bias is not None and (own is None or len(shape_of_node(bias)) != 1):
        return None
    return Linear(node, x, (0 if name == "linear" else 1) ^ is_turned, parameter, own[0] if own else None)


def _parameter(exported: Any, node: Any) -> tuple[Any, int] | None:
    """Return the placeholder of the parameter that a weight is, and 1 if its axes are exchanged on the way."""
    turned = 0
    while node.op == "call_function" and name_of(node) in PASSING and len(shape_of_node(node)) <= 3:
        if name_of(node) in ("t", "transpose", "permute"):
            order = permutation_of(node, len(shape_of_node(node)))
            if order[:-2] != [*range(len(order) - 2)]:
                return None
            turned ^= order[-2:] != sorted(order[-2:])
        node = node.args[0]
    return (node, turned) if node.name in exported.graph_signature.inputs_to_parameters else None


def head_of(exported: Any, linears: Mapping[Any, Linear]) -> Any:
    """Return the layer that scores the words of a vocabulary: the last one with as many columns as an embedding has."""
    sizes = {shape_of_node(node.args[0])[0] for node in exported.graph.nodes if name_of(node) == LOOKUP}
    found = None
    for node in exported.graph.nodes:
        if node in linears and shape_of_node(node)[-1] in sizes:
            found = node
    if found is None:
        return None
    after = {found}
    for node in exported.graph.nodes:
        if any(one in after for one in node.all_input_nodes):
            if node in linears:
                return None
            after.add(node)
    return found
