"""The arguments of a module's call: Python holds them until the call returns, whether or not anything reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cdmpp.network.graph import Call


def with_arguments(calls: Sequence[Call], nodes: Sequence[Any], places: Mapping[str, tuple[int, int]]) -> list[Call]:
    """Let the last call of each module hold what the module was given.

    Args:
        calls: calls of a network in order.
        nodes: nodes of its exported graph, in order; ``meta["nn_module_stack"]`` names the modules around each.
        places: name of a node -> its first and its last call.
    """
    begun, found = dict[str, int](), list(calls)
    last = 0
    for node in (*nodes, None):
        around = () if node is None else tuple(node.meta.get("nn_module_stack") or ())
        if node is not None and node.op != "call_function":
            continue
        for module in [one for one in begun if one not in around]:
            _hold(found, begun.pop(module), last)
        for module in around:
            begun.setdefault(module, last)
        last = places[node.name][1] + 1 if node is not None and node.name in places else last
    return found


def _hold(calls: list[Call], first: int, end: int) -> None:
    """Let the last of the calls from ``first`` to before ``end`` hold what these read of calls before."""
    given = {place for call in calls[first:end] for place in call.inputs if place < first}
    if more := given.difference(calls[end - 1].inputs) if end > first else set():
        calls[end - 1] = replace(calls[end - 1], held=tuple(sorted(more.union(calls[end - 1].held))))
