"""Layout of tensor parallelism: which linear layers of a graph are divided by columns and which by rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import title_of
from cdmpp.operators.aten import name_of
from cdmpp.plans.strategies.tensor_rules import Placement, passed_on, permutation_of, shape_of_node, sliced_inputs
from cdmpp.plans.strategies.tensor_shard import NotDivisibleError, Shard

COLUMN, ROW = "column", "row"
_PASSING = ("t", "transpose", "permute", "to", "_to_copy", "alias", "detach", "contiguous")
"""Operators between a weight and the product that reads it."""


class Linear(NamedTuple):
    """A product of what a node reads and a weight."""

    node: Any
    x: Any
    weight: Any
    bias: Any
    columns: int
    """Axis of the parameter along which its output features lie."""
    parameter: Any
    """Placeholder that the weight comes from."""
    bias_parameter: Any


@dataclass
class Layout:
    """Roles of layers, and how every value is divided."""

    exported: Any
    at: dict[Any, Placement] = field(default_factory=dict)
    """Node -> how its value is divided; None: every rank has all."""
    roles: dict[Any, str] = field(default_factory=dict)
    """Linear layer or embedding -> ``COLUMN`` or ``ROW``."""
    parameters: dict[Any, Shard] = field(default_factory=dict)
    """Placeholder of a parameter that is divided -> how."""
    whole: dict[Any, None] = field(default_factory=dict)
    """Linear layers that every rank runs whole."""
    linears: dict[Any, Linear] = field(default_factory=dict)

    def check(self, ranks: int, strategy: str, framework: str) -> None:
        """Raise ``CdmppError`` where something cannot be divided evenly, with the rule of the framework."""
        most, _ = self.limit()
        for size, layer, what in self.sizes():
            if size % ranks:
                own = ", ".join(str(one) for one in range(1, most + 1) if most % one == 0)
                raise CdmppError(
                    f"{strategy}={ranks}: {layer} gives {size} {what}, and {framework} divides them evenly among "
                    f"ranks: expected {own} ranks"
                )

    def limit(self) -> tuple[int, str]:
        """Return the most ranks that can have equal parts of all that is divided, and the layer that allows no more.

        ``(1, "")`` where nothing can be divided.
        """
        sizes = self.sizes()
        return (math.gcd(*(size for size, _, _ in sizes)), sizes[0][1]) if sizes else (1, "")

    def sizes(self) -> list[tuple[int, str, str]]:
        """List sizes that are divided, the smallest first, with the name of the layer and what they count."""
        found = dict[tuple[int, str, str], None]()
        for shard in self.at.values():
            for origin in shard.origins if shard is not None else ():
                given = self.at[origin]
                features = min(given.blocks) if given is not None else 0
                for size in shard.blocks if shard is not None else ():
                    found[size, title_of(origin), "heads" if size < features else "features"] = None
        return sorted(found)


def layout_of(exported: Any) -> Layout:
    """Find the roles of all layers.

    Every linear layer that reads whole values is one of columns at first, and every embedding is divided along its
    features. What is divided so passes through the graph by the rules of operators, up to a layer of rows. Where an
    operator needs whole values, the layers that the parts come from are left whole, and all is passed on again.
    """
    weights = {node: one for node in exported.graph.nodes if (one := _linear(exported, node)) is not None}
    left, blocks = dict[Any, None](), dict[Any, tuple[int, ...]]()
    while True:
        found = _Pass(exported, weights, left, blocks)
        found.run()
        if not found.wrong and not found.pieces:
            return found.layout
        lookups = [node for node in exported.graph.nodes if node in found.wrong and node not in weights]
        # what an embedding spoils looks wrong as well
        left |= dict.fromkeys(lookups[:1] or (node for node in weights if node in found.wrong))
        blocks |= {} if lookups else found.pieces


class _Pass:
    """One pass over the graph, with some layers left whole and some divided in blocks."""

    def __init__(
        self, exported: Any, linears: dict[Any, Linear], left: Mapping[Any, None], blocks: Mapping[Any, tuple[int, ...]]
    ) -> None:
        self.exported, self.left, self.blocks = exported, left, blocks
        self.layout = Layout(exported, linears=linears)
        self.wrong = set[Any]()
        self.pieces = dict[Any, tuple[int, ...]]()
        self.trained = exported.graph_signature.inputs_to_parameters

    @property
    def at(self) -> dict[Any, Placement]:
        return self.layout.at

    def run(self) -> None:
        nodes = list(self.exported.graph.nodes)
        for node in nodes:
            self.at[node] = None
        for node in nodes:
            if node.op not in ("call_function", "output"):
                continue
            try:
                self.at[node] = self.placed(node)
            except NotDivisibleError as error:
                self.refuse(error)
        for parameter, shard in self.layout.parameters.items():
            others = [user for user in parameter.users if self.reader(user) not in self.layout.roles]
            if others:
                self.wrong |= shard.origins

    def reader(self, node: Any) -> Any:
        """The layer that reads a weight, behind what only passes it on."""
        while name_of(node) in _PASSING and len(node.users) == 1 and node not in self.layout.roles:
            node = next(iter(node.users))
        return node

    def refuse(self, error: NotDivisibleError) -> None:
        """Leave layers whole, or divide each of the pieces of what they give."""
        for one in error.origins:
            size = shape_of_node(one)[-1]
            whole, pieces = sum(error.pieces), error.pieces
            known = one in self.blocks or one in self.pieces
            if pieces and not known and whole and all(size * piece % whole == 0 for piece in pieces):
                self.pieces[one] = tuple(size * piece // whole for piece in pieces)
            elif self.pieces.get(one) != tuple(size * piece // whole for piece in pieces if whole):
                self.wrong.add(one)

    def placed(self, node: Any) -> Placement:
        if node.op == "output":
            if found := [shard for one in node.all_input_nodes if (shard := self.at[one])]:
                raise NotDivisibleError(*found)
            return None
        if (linear := self.layout.linears.get(node)) is not None:
            return self.linear(linear)
        if name_of(node) == "embedding" and node not in self.left and node.args[0].name in self.trained:
            *outer, size = shape_of_node(node)
            return self.column(node, node.args[0], 1, Shard(len(outer), (size,), frozenset((node,))))
        shard = passed_on(node, self.at)
        if shard is not None:
            self.check_whole(node, shard)
        return shard

    def check_whole(self, node: Any, out: Shard) -> None:
        """``NotDivisibleError`` where gradients of what every rank has would be parts of a sum."""
        for one in sliced_inputs(node, self.at, out):
            if self.learns(one) or len(out.blocks) > 1:
                raise NotDivisibleError(out)

    def learns(self, node: Any) -> bool:
        """True if a parameter is in what a node gives."""
        seen, left = set[Any](), [node]
        while left:
            one = left.pop()
            if one.name in self.trained:
                return True
            if one not in seen:
                seen.add(one)
                left += one.all_input_nodes
        return False

    def linear(self, one: Linear) -> Placement:
        shard, rank = self.at[one.x], len(shape_of_node(one.node))
        if shard is None:
            if one.node in self.left:
                self.layout.whole[one.node] = None
                return None
            size = shape_of_node(one.node)[-1]
            found = Shard(rank - 1, self.blocks.get(one.node, (size,)), frozenset((one.node,)))
            return self.column(one.node, one.parameter, one.columns, found, one.bias_parameter)
        if shard.axis != len(shape_of_node(one.x)) - 1:
            raise NotDivisibleError(shard)
        self.divide(one.parameter, shard.on(1 - one.columns))
        self.layout.roles[one.node] = ROW
        return None

    def column(self, node: Any, parameter: Any, axis: int, found: Shard, bias: Any = None) -> Shard:
        self.divide(parameter, found.on(axis))
        if bias is not None:
            self.divide(bias, found.on(0))
        self.layout.roles[node] = COLUMN
        return found

    def divide(self, parameter: Any, shard: Shard) -> None:
        known = self.layout.parameters.get(parameter)
        if known is not None and (known.axis, known.blocks) != (shard.axis, shard.blocks):
            raise NotDivisibleError(known, shard)
        self.layout.parameters[parameter] = shard if known is None else known.on(known.axis)


def _linear(exported: Any, node: Any) -> Linear | None:
    """Return the product of a linear layer; None for any other node."""
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
    columns = (0 if name == "linear" else 1) ^ is_turned
    own = _parameter(exported, bias) if bias is not None else None
    if bias is not None and (own is None or len(shape_of_node(bias)) != 1):
        return None
    return Linear(node, x, weight, bias, columns, parameter, own[0] if own else None)


def _parameter(exported: Any, node: Any) -> tuple[Any, int] | None:
    """Return the placeholder of the parameter that a weight is, and 1 if its axes are exchanged on the way."""
    turned = 0
    while node.op == "call_function" and name_of(node) in _PASSING and len(shape_of_node(node)) <= 2:
        if name_of(node) in ("t", "transpose", "permute"):
            turned ^= permutation_of(node, 2) == [1, 0]
        node = node.args[0]
    return (node, turned) if node.name in exported.graph_signature.inputs_to_parameters else None
