"""Nodes of an exported graph, beside the calls that a network makes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from cdmpp.network.eager.noted_calls import Given, Result

_ASSERT = "aten._assert_tensor_metadata.default"
"""Exporters put it before what changes a type or a device."""


def is_called(node: Any) -> bool:
    """Return True for a node that the network called, and no exporter."""
    if node.op != "call_function" or is_part(node):
        return False
    return str(node.target) != _ASSERT or any(type(one) is int for one in leaves_of(node))


def is_part(node: Any) -> bool:
    """Return True for a node that takes one of several results."""
    return node.target is operator.getitem


def part_of(node: Any, place: int) -> Any:
    """Return the node of one result of another; None where the export has none."""
    if node is None or not isinstance(node.meta["val"], tuple | list):
        return node
    return next((one for one in node.users if is_part(one) and one.args[1] == place), None)


def is_same(node: Any, given: tuple[Any, ...], names: Callable[[Any], Any]) -> bool:
    """Return whether a node has these arguments."""
    own = leaves_of(node)
    if len(own) != len(given):
        return False
    for one, other in zip(own, given, strict=True):
        if isinstance(other, Result | Given):
            if getattr(one, "name", None) not in names(other) or not hasattr(one, "meta"):
                return False
        elif not is_equal(one, other):
            return False
    return True


def renumbered(node: Any, own: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the arguments of a node with other numbers, where those of its calls differ."""
    from torch.utils import _pytree

    leaves, structure = _pytree.tree_flatten(_plain((node.args, dict(node.kwargs))))
    every = zip(leaves, own, new, strict=True)
    changed = [leaf if isinstance(b, Result | Given) or is_equal(a, b) else b for leaf, a, b in every]
    args, kwargs = _pytree.tree_unflatten(changed, structure)
    return args, kwargs


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two arguments are of one type and equal; one that is not a number equals itself."""
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def leaves_of(node: Any) -> list[Any]:
    """Return the arguments of a node in a row."""
    from torch.utils import _pytree

    return list(_pytree.tree_leaves(_plain((node.args, dict(node.kwargs)))))


def _plain(value: Any) -> Any:
    """Return arguments with lists and tuples that ``pytree`` knows."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return [*map(_plain, value)]
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, Mapping) else value
