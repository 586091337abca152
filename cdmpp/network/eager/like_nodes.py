"""Nodes of an export with open sizes that run the same calls: one of each stands for all of them, at any sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.graph import choose_kernel, written_bytes
from cdmpp.network.eager.products import in_products, layer_of
from cdmpp.network.eager.read import ExportedRun
from cdmpp.network.eager.symbolic import GraphAt, Shapes, Sizes, SymbolicExport, is_size
from cdmpp.network.graph import Call
from cdmpp.operators.aten import ATTENTION_CALL, calls_of, name_of
from cdmpp.operators.operator import EagerOperator

DEPTH = 3
"""Nodes that compute what a node reads, so many back, at most play a part in which calls it runs."""


class NodeCall(NamedTuple):
    """A node runs this call, among others."""

    operator: EagerOperator
    output_bytes: int
    is_joined: bool
    stands_for: str


def node_of(call: Call) -> str:
    """Return the name of the node that runs a call."""
    return call.name.rpartition("#")[0]


def by_node(read: EagerNetwork) -> dict[str, list[NodeCall]]:
    """Name of a node -> its calls."""
    found: dict[str, list[NodeCall]] = {}
    for place, call in enumerate(read.graph.calls):
        stands_for = read.stand_ins.get(place, "")
        one = NodeCall(read.operators[call.task_id], call.output_bytes, call.is_joined, stands_for)
        found.setdefault(node_of(call), []).append(one)
    return found


@dataclass(frozen=True, eq=False)
class LikeNodes:
    """Nodes are alike that are the same operator, with the same arguments, on tensors of the same open sizes."""

    symbolic: SymbolicExport
    stands_for: Mapping[str, str]
    """Name of a node -> that of the node that stands for it."""
    kept: tuple[tuple[Any, bool], ...]
    """Nodes of the small graph in which those stand, and whether their value is given there."""
    _graph: GraphAt | None = field(default=None, init=False)

    def calls_at(self, shapes: Shapes, run: ExportedRun) -> dict[str, list[NodeCall]]:
        """Return the calls at these shapes of each node that stands for others, by its name; none of a view."""
        place, products, found = run.place, run.network.precision, dict[str, list[NodeCall]]()
        for node in self._nodes_at(self.symbolic.sizes(shapes)):
            if name_of(node) == ATTENTION_CALL:
                choose_kernel(node, place, run.attention)
            calls = in_products(calls_of(node), node, products)
            if calls.operators:
                stands_for, joined = calls.stands_for, calls.is_joined
                found[node.name] = [
                    NodeCall(operator, size, joined and index > 0, stands_for)
                    for index, (operator, size) in enumerate(
                        zip(calls.operators, written_bytes(node, calls), strict=True)
                    )
                ]
        return found

    def _nodes_at(self, sizes: Sizes) -> list[Any]:
        """Return the nodes of the small graph that run something; where nothing is cast, they are made once."""
        if self._graph is None or self.symbolic.is_cast:
            graph = GraphAt(sizes)
            for node, is_given in self.kept:
                graph.copy(node, as_input=is_given)
            graph.graph.output(())
            self.symbolic.program(graph)
            object.__setattr__(self, "_graph", graph)
        else:
            graph = self._graph
            graph.move(sizes)
        return [node for node in graph.graph.nodes if node.name in self._standing]

    @cached_property
    def _standing(self) -> frozenset[str]:
        return frozenset(self.stands_for.values())


def like_nodes(symbolic: SymbolicExport, depth: int) -> LikeNodes:
    """Find them; what the operators of a node read is compared ``depth`` nodes back."""
    keys, first, stands_for = _Keys(), dict[Any, Any](), dict[str, str]()
    nodes = list(symbolic.exported.graph.nodes)
    for node in nodes:
        if node.op == "call_function" and not is_size(node):
            stands_for[node.name] = first.setdefault(keys.of(node, depth), node).name
    inner, given = set[Any](), set[Any]()
    waiting = [(node, depth) for node in first.values()]
    deepest = dict[Any, int]()
    while waiting:
        node, left = waiting.pop()
        if deepest.get(node, -2) >= left:
            continue
        deepest[node] = left
        (given if left < 0 else inner).add(node)
        if left >= 0 and not is_size(node):
            waiting += [(one, left - 1) for one in node.all_input_nodes]
    kept = tuple((node, node not in inner) for node in nodes if node in inner or node in given)
    return LikeNodes(symbolic, stands_for, kept)


class _Keys:
    def __init__(self) -> None:
        self.known: dict[tuple[Any, int], Any] = {}

    def of(self, node: Any, depth: int) -> Any:
        """All that the calls of a node may depend on."""
        if (node, depth) not in self.known:
            value = _described(node.meta.get("val"))
            if node.op != "call_function" or is_size(node) or depth < 0:
                found: Any = (node.op if node.op != "call_function" else "", value)
            else:
                marks = tuple(repr(node.meta[key]) for key in sorted(node.meta, key=str) if _is_mark(key))
                found = (
                    node.target,
                    value,
                    marks,
                    layer_of(node),
                    self._of(node.args, depth),
                    self._of(node.kwargs, depth),
                )
            self.known[node, depth] = found
        return self.known[node, depth]

    def _of(self, given: Any, depth: int) -> Any:
        if hasattr(given, "all_input_nodes"):
            return self.of(given, depth - 1)
        if isinstance(given, tuple | list):
            return tuple(self._of(one, depth) for one in given)
        if isinstance(given, Mapping):
            return tuple((name, self._of(one, depth)) for name, one in given.items())
        return type(given), repr(given)


def _is_mark(key: Any) -> bool:
    return key == "custom" or str(key).startswith("cdmpp")


def _described(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(map(_described, value))
    if hasattr(value, "stride"):
        return value.dtype, str(value.device), *map(_size, value.shape), None, *map(_size, value.stride())
    return _size(value)


def _size(size: Any) -> Any:
    return getattr(getattr(size, "node", None), "expr", size)
