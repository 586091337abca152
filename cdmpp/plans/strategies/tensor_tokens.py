"""Rules of tokens: how operators that choose experts pass on tokens that ranks divide, and which layers choose them.

A rank sorts, counts and gathers tokens of its own. Only the experts themselves need those of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cdmpp.operators.aten import name_of
from cdmpp.operators.aten_grouped import GROUPED
from cdmpp.plans.strategies.tensor_rules import Placement, arguments_of, shape_of_node
from cdmpp.plans.strategies.tensor_shard import NotDivisibleError, Shard

WHOLE, DIVIDED, APART = "whole", "divided", "apart"
EXPERTS = (WHOLE, DIVIDED, APART)
"""How ranks of tensor parallelism use experts, see ``Tensor.experts``."""
_CHOOSING = ("topk", "sort", "argsort")


def is_of_experts(node: Any) -> bool:
    """Return True for a product of rows with one matrix of several each."""
    return (
        node.op == "call_function"
        and name_of(node) in GROUPED
        and len(shape_of_node(node.args[1])) == 3
        and len(shape_of_node(node)) == 2
    )


def chooses(node: Any, linears: Mapping[Any, Any]) -> bool:
    """Return True for a linear layer whose results choose experts, before another linear layer reads them."""
    seen, ahead = set[Any](), [*node.users]
    while ahead:
        one = ahead.pop()
        if one in seen or one in linears or one.op != "call_function":
            continue
        if name_of(one) in _CHOOSING:
            return True
        seen.add(one)
        ahead += one.users
    return False


def passed_tokens(node: Any, at: Mapping[Any, Placement]) -> tuple[bool, Placement]:
    """Return whether an operator has a rule for tokens, and how its result is divided then.

    ``NotDivisibleError`` where it mixes tokens in a way that a rank cannot do by itself.
    """
    rule = _RULES.get(name_of(node))
    shards = [shard for one in node.all_input_nodes if (shard := at.get(one)) is not None]
    if rule is None or not shards or any(one.origins for one in shards):
        return False, None
    return True, rule(node, at)


def _of_first(node: Any, at: Mapping[Any, Placement]) -> Placement:
    """Each row by itself, or all rows of a rank in an order of their own."""
    shard = at.get(node.args[0])
    if shard is None or shard.axis != 0:
        raise NotDivisibleError(*_all(node, at))
    dim = arguments_of(node).get("dim")
    if name_of(node) not in ("sort", "argsort") and isinstance(dim, int) and dim % len(shape_of_node(node)) == 0:
        raise NotDivisibleError(shard)
    return shard


def _counted(node: Any, at: Mapping[Any, Placement]) -> Placement:  # noqa: ARG001
    """Each rank counts its own tokens for all experts."""
    return None


def _indexed(node: Any, at: Mapping[Any, Placement]) -> Placement:
    """Rows that a rank has, by numbers that count among them."""
    source, indices = node.args[:2]
    given = [one for one in indices if one is not None]
    if len(given) != 1 or indices[0] is None or at.get(source) is None or (shard := at.get(given[0])) is None:
        raise NotDivisibleError(*_all(node, at))
    return shard


def _put(node: Any, at: Mapping[Any, Placement]) -> Placement:
    """Rows are written to places among those of a rank."""
    if (shard := at.get(node.args[0])) is None or at.get(node.args[1][0]) is None:
        raise NotDivisibleError(*_all(node, at))
    return shard


def _all(node: Any, at: Mapping[Any, Placement]) -> list[Shard]:
    return [shard for one in node.all_input_nodes if (shard := at.get(one)) is not None]


_RULES: Mapping[str, Callable[[Any, Mapping[Any, Placement]], Placement]] = {
    **dict.fromkeys((*_CHOOSING, "gather", "scatter", "scatter_", "constant_pad_nd", "floor_divide"), _of_first),
    **dict.fromkeys(("histc", "bincount"), _counted),
    **dict.fromkeys(("index_put", "index_put_"), _put),
    "index": _indexed,
}
