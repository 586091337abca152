"""Products of another type than their factors: of float32 on matrix units (TF32), of layers and experts in float8."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from typing import Any

from cdmpp.network.precision import Precision
from cdmpp.operators.aten import Calls, name_of
from cdmpp.operators.aten_grouped import GROUPED
from cdmpp.operators.backward import Gradient
from cdmpp.operators.float8 import can_be_float8, casts_before, is_of_engine
from cdmpp.operators.operator import PRODUCTS, EagerOperator


def in_products(found: Calls, node: Any, precision: Precision | None) -> Calls:
    """Return the calls of a node as they are in a precision; None: as their factors are."""
    if precision is None or not (precision.tf32 or precision.float8):
        return found
    if precision.float8:
        if is_of_engine(precision.float8) and name_of(node) in GROUPED:
            return _of_experts(found, node, precision.float8)
        return _in_float8(found, precision.float8) if _is_linear_layer(node) else found
    return found._replace(operators=in_tf32(found.operators))


def in_tf32(operators: Iterable[EagerOperator]) -> tuple[EagerOperator, ...]:
    """Return operators with their products of float32 on matrix units that read 19 of their bits."""
    return tuple(
        replace(one, dtype="tf32") if one.kind.family in PRODUCTS and one.dtype == "float32" else one
        for one in operators
    )


def layer_of(node: Any) -> str:
    """Return the whole name of the class of the innermost module that a node is of; nothing where that is not known."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][1]) if stack else ""


def _is_linear_layer(node: Any) -> bool:
    """Return True for the product of a ``torch.nn.Linear``, which is what torchao converts.

    A graph has the classes of modules by name, so one that was defined within a function is not found.
    """
    from torch.nn import Linear

    path = layer_of(node).split(".")
    places = ((sys.modules.get(".".join(path[:end])), path[end:]) for end in range(len(path) - 1, 0, -1))
    found: Any = next((reduce(_inside, names, module) for module, names in places if module is not None), None)
    return isinstance(found, type) and issubclass(found, Linear)


def _inside(outer: Any, name: str) -> Any:
    return getattr(outer, name, None)


def _of_experts(found: Calls, node: Any, scaling: str) -> Calls:
    """Cast the rows of products of experts before them, which multiply in float8, as their gradients do."""
    if not all(one.dtype == "bfloat16" and can_be_float8(one, scaling) for one in found.operators):
        return found
    products = tuple(replace(one, dtype="float8") for one in found.operators)
    casts = tuple(cast for one in products for cast in casts_before(one, scaling))
    gradients = tuple(
        own and tuple(one._replace(operator=replace(one.operator, dtype="float8")) for one in own)
        for own in found.gradients
    )
    return found._replace(
        operators=(*casts, *products),
        reads=(*[()] * len(casts), tuple(node.all_input_nodes), *[()] * (len(products) - 1)),
        gradients=(*[None] * len(casts), *gradients),
    )


def _in_float8(found: Calls, scaling: str) -> Calls:
    """Cast both factors before a linear layer, and add its bias after it."""
    *before, last = found.operators or (None,)
    if last is None or last.dtype != "bfloat16" or not can_be_float8(last):
        return found
    product = replace(last, dtype="float8", sizes={**last.sizes, "bias": 0})
    casts, rows, cols = casts_before(product, scaling), last["rows"], last["cols"]
    operators = (*before, *casts, product)
    reads = (*found.reads[:-1], *[()] * len(casts), found.reads[-1])
    if not last["bias"]:
        return found._replace(operators=operators, reads=reads)
    added = EagerOperator("add_broadcast", {"rows": rows, "cols": cols}, last.dtype)
    summed = Gradient(EagerOperator("mean", {"rows": cols, "cols": rows}, last.dtype), "weight")
    return found._replace(
        operators=(*operators, added),
        reads=(*reads[:-1], reads[-1][:-1], reads[-1][-1:]),
        gradients=(*[None] * len(operators), (summed,)),
    )
