"""Layout of tensor parallelism: which layers of a graph are divided by columns and by rows, and what lies between."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import title_of
from cdmpp.operators.aten import name_of
from cdmpp.plans.strategies.tensor_rules import (
    VIEWS,
    Placement,
    arguments_of,
    passed_on,
    permutation_of,
    shape_of_node,
    sliced_inputs,
)
from cdmpp.plans.strategies.tensor_shard import NotDivisibleError, Shard, viewed
from cdmpp.plans.strategies.tensor_tokens import APART, WHOLE, chooses, is_of_experts, passed_tokens

COLUMN, ROW, LOSS = "column", "row", "loss"
GATHER, SLICE = "gather", "slice"
_PASSING = ("t", "transpose", "permute", "to", "_to_copy", "alias", "detach", "contiguous")
"""Operators between a weight and the product that reads it."""
_LOOKUP, _CROSS_ENTROPY = "embedding", "cross_entropy_loss"


class Rules(NamedTuple):
    """A framework divides by these."""

    framework: str
    replicates_heads: bool
    """True if ranks that are more than the heads of keys and values share them."""
    multiple: int
    """Words of each rank are padded to a multiple of this."""


FRAMEWORKS = {"torch": Rules("torch", False, 1), "megatron": Rules("megatron", True, 128)}


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


@dataclass
class Layout:
    """Roles of layers, and how every value is divided."""

    exported: Any
    linears: dict[Any, Linear] = field(default_factory=dict)
    at: dict[Any, Placement] = field(default_factory=dict)
    """Node -> how its value is divided; None: every rank has all."""
    roles: dict[Any, str] = field(default_factory=dict)
    """Linear layer or embedding -> ``COLUMN`` or ``ROW``; a loss of divided scores -> ``LOSS``."""
    parameters: dict[Any, Shard] = field(default_factory=dict)
    """Placeholder of a parameter that is divided -> how."""
    changes: dict[tuple[Any, Any], str] = field(default_factory=dict)
    """Node and one that it reads -> ``GATHER`` or ``SLICE``, by which it gets what it needs of that."""
    sliced: dict[Any, None] = field(default_factory=dict)
    """Embeddings that every rank has whole, and of whose results each takes its part of the sequence."""
    gathered: dict[Any, None] = field(default_factory=dict)
    """Layers of columns whose results every rank has whole."""
    whole: dict[Any, None] = field(default_factory=dict)
    """Linear layers that every rank runs whole."""
    apart: dict[Any, Any] = field(default_factory=dict)
    """Product of experts of which each rank has some -> placeholder of their matrices."""
    partial: dict[Any, None] = field(default_factory=dict)
    """Parameters that every rank has, and whose gradients are parts of a sum."""

    def check(self, ranks: int, strategy: str, rules: Rules) -> None:
        """Raise ``CdmppError`` where something cannot be divided evenly, with the rule of the framework."""
        copied = {title_of(one) for one in self.copies(ranks, rules)}
        sizes = [one for one in self.sizes() if one[1] not in copied]
        most = math.gcd(*(size for size, _, _ in sizes))
        for size, layer, what in sizes:
            if size % ranks:
                own = ", ".join(str(one) for one in range(1, most + 1) if most % one == 0)
                few = "; megatron would replicate few of keys and values" if ranks % size == 0 else ""
                raise CdmppError(
                    f"{strategy}={ranks}: {layer} gives {size} {what}, and {rules.framework} divides them evenly among "
                    f"ranks: expected {own} ranks{few if what == 'heads' and not rules.replicates_heads else ''}"
                )

    def copies(self, ranks: int, rules: Rules) -> dict[Any, int]:
        """Return the layers of which several ranks have the same part, with how many: of few heads of keys and values.

        That is for attention by one kernel, which takes more heads of queries.
        """
        heads = dict[Any, int]()
        for shard in self.at.values():
            for origin in shard.origins if shard is not None else ():
                heads[origin] = min(heads.get(origin, min(shard.blocks)), *shard.blocks) if shard is not None else 0
        found = {one: ranks // many for one, many in heads.items() if many % ranks and ranks % many == 0}
        if not rules.replicates_heads:
            return {}
        calls = [node for node in self.at if name_of(node) == "scaled_dot_product_attention"]
        queries, read = (
            {origin for node in calls for one in node.args[own] if (shard := self.at[one]) for origin in shard.origins}
            for own in (slice(0, 1), slice(1, 3))
        )
        return {one: many for one, many in found.items() if one in read - queries}

    def limit(self) -> tuple[int, str]:
        """Return the most ranks that can have equal parts of all that is divided, and the layer that allows no more.

        ``(1, "")`` where nothing can be divided.
        """
        sizes = self.sizes()
        return (math.gcd(*(size for size, _, _ in sizes)), sizes[0][1]) if sizes else (1, "")

    def sizes(self) -> list[tuple[int, str, str]]:
        """List sizes that are divided, the smallest first, with the name of the layer and what they count."""
        found = dict[tuple[int, str, str], None]()
        for node, shard in (*self.at.items(), *self.parameters.items()):
            if shard is None or shard.multiple:
                continue
            if not shard.origins:
                what = "experts" if node in self.parameters else "tokens"
                found |= dict.fromkeys((size, title_of(node), what) for size in shard.blocks)
            for origin in shard.origins:
                features = self.at[origin]
                least = min(features.blocks) if features is not None else 0
                for size in shard.blocks:
                    found[size, title_of(origin), "heads" if size < least else "features"] = None
        return sorted(found)


def layout_of(
    exported: Any, multiple: int = 0, loss: bool = False, sequence: bool = False, experts: str = WHOLE
) -> Layout:
    """Find the roles of all layers.

    Every linear layer that reads whole values is one of columns at first, and every embedding is divided along its
    features. What is divided so passes through the graph by the rules of operators, up to a layer of rows. Where an
    operator needs whole values, the layers that the parts come from are left whole, and all is passed on again.

    Args:
        exported: an ``ExportedProgram``, or what stands for it.
        multiple: the embedding of words and the layer that scores them are divided by words, padded to a multiple of
            this; 0: they are not divided.
        loss: whether a cross-entropy of scores that are divided by words runs on the parts.
        sequence: whether what lies between layers is divided along the sequence.
        experts: one of ``EXPERTS``.
    """
    linears = {node: one for node in exported.graph.nodes if (one := _linear(exported, node, experts)) is not None}
    head = _head(exported, linears) if multiple else None
    loss = loss and head is not None
    words = shape_of_node(head)[-1] if head is not None else 0
    left, blocks = dict[Any, None](), dict[Any, tuple[int, ...]]()
    lookups = {
        node: ROW if shape_of_node(node.args[0])[0] == words else COLUMN
        for node in exported.graph.nodes
        if name_of(node) == _LOOKUP and node.args[0].name in exported.graph_signature.inputs_to_parameters
    }
    while True:
        found = _Pass(exported, linears, lookups, head, left, blocks, multiple, loss, sequence, experts)
        found.run()
        if found.needs_scores:
            loss = False
            continue
        if not found.wrong and not found.pieces:
            return found.layout
        wrong = [node for node in exported.graph.nodes if node in found.wrong and node in lookups]
        # what an embedding spoils looks wrong as well
        left |= dict.fromkeys(wrong[:1] or (node for node in linears if node in found.wrong))
        blocks |= {} if wrong else found.pieces


class _Pass:
    """One pass over the graph, with some layers left whole and some divided in blocks."""

    def __init__(
        self, exported: Any, linears: dict[Any, Linear], lookups: Mapping[Any, str], head: Any,
        left: Mapping[Any, None], blocks: Mapping[Any, tuple[int, ...]], multiple: int, loss: bool, sequence: bool,
        experts: str,
    ) -> None:  # fmt: skip
        self.exported, self.lookups, self.head, self.left, self.blocks = exported, lookups, head, left, blocks
        self.multiple, self.loss, self.is_sequence = multiple, loss, sequence
        self.experts, self.tokens = experts, dict[Any, Shard]()
        """The latter: product of experts -> how the tokens are divided that it reads all of."""
        self.layout = Layout(exported, linears)
        self.at = self.layout.at
        self.wrong = set[Any]()
        self.pieces = dict[Any, tuple[int, ...]]()
        self.trained = exported.graph_signature.inputs_to_parameters
        self.needs_scores = False
        """True if something but a loss that can be divided reads the scores of words."""
        self.after = set[Any]()
        """Nodes whose values depend on a parameter."""

    def run(self) -> None:
        for node in self.exported.graph.nodes:
            self.at[node] = None
            if node.name in self.trained or any(one in self.after for one in node.all_input_nodes):
                self.after.add(node)
            if node.op in ("call_function", "output"):
                try:
                    self.at[node] = self.placed(node)
                except NotDivisibleError as error:
                    self.refuse(node, error)
        for parameter, shard in self.layout.parameters.items():
            if any(self.reader(user) not in self.layout.roles for user in parameter.users):
                self.wrong |= shard.origins

    def reader(self, node: Any) -> Any:
        """The layer that reads a weight, behind what only passes it on."""
        while name_of(node) in _PASSING and len(node.users) == 1 and node not in self.layout.roles:
            node = next(iter(node.users))
        return node

    def refuse(self, node: Any, error: NotDivisibleError) -> None:
        """Leave layers whole, or divide each of the pieces of what they give."""
        if any(not shard.origins for one in node.all_input_nodes if (shard := self.at[one]) is not None):
            self.whole_sequences(node)
            return
        if self.head in error.origins and self.loss:
            self.needs_scores = True
            return
        for one in error.origins:
            size, whole = shape_of_node(one)[-1], sum(error.pieces)
            own = tuple(size * piece // whole for piece in error.pieces)
            known = one in self.blocks or one in self.pieces
            if own and not known and sum(own) == size and all(own):
                self.pieces[one] = own
            elif not own or self.pieces.get(one) != own:
                self.wrong.add(one)

    def whole_sequences(self, node: Any) -> None:
        """Let an operator read whole sequences."""
        read = dict(self.at)
        for one in node.all_input_nodes:
            if (shard := self.at[one]) is not None and not shard.origins:
                self.layout.changes[node, one] = GATHER
                read[one] = None
        try:
            self.at[node] = passed_on(node, read) if node.op == "call_function" else None
        except NotDivisibleError as error:
            self.wrong |= error.origins

    def placed(self, node: Any) -> Placement:
        found = [shard for one in node.all_input_nodes if (shard := self.at[one])]
        if node.op == "output":
            if found:
                raise NotDivisibleError(*found)
            return None
        if (linear := self.layout.linears.get(node)) is not None:
            return self.linear(linear)
        if node in self.lookups and node not in self.left and not found:
            return self.lookup(node)
        if name_of(node) == _CROSS_ENTROPY and found and self.can_divide(node):
            self.layout.roles[node] = LOSS
            return None
        if self.experts != WHOLE:
            is_known, own = passed_tokens(node, self.at)
            if is_known:
                self.own_rows(node, own)
                return own
        shard = passed_on(node, self.at)
        if self.is_sequence and shard is None and self.is_of_stream(node):
            self.layout.sliced[node] = None
            return self.of_sequence(node)
        if shard is not None:
            self.check_whole(node, shard)
        return shard

    def is_of_stream(self, node: Any) -> bool:
        """True for an embedding as wide as the first one, which what lies between layers begins with."""
        widths = [shape_of_node(one)[-1] for one in self.lookups]
        return node in self.lookups and shape_of_node(node)[-1] == widths[0] and len(shape_of_node(node)) > 1

    def can_divide(self, node: Any) -> bool:
        """True for a loss of scores that are divided by words, as PyTorch's ``loss_parallel`` runs it."""
        given, shard = arguments_of(node), self.at[node.args[0]]
        is_plain = given.get("weight") is None and not given.get("label_smoothing")
        rank = len(shape_of_node(node.args[0]))
        return self.loss and is_plain and rank == 2 and shard is not None and shard.axis == 1 and bool(shard.origins)

    def lookup(self, node: Any) -> Placement:
        *outer, size = shape_of_node(node)
        origins = frozenset((node,))
        if self.lookups[node] == COLUMN:
            return self.column(node, node.args[0], 1, Shard(len(outer), (size,), origins))
        self.divide(node.args[0], Shard(0, (shape_of_node(node.args[0])[0],), origins, self.multiple))
        self.layout.roles[node] = ROW
        return self.of_sequence(node) if self.is_sequence else None

    def of_sequence(self, node: Any) -> Placement:
        """How what a layer gives is divided along the sequence, which is the axis before its features.

        Where examples and their tokens are one axis, what reads it says how long a sequence is.
        """
        shape, like = shape_of_node(node), node
        while len(shape_of_node(like)) == 2 and len(like.users) == 1 and name_of(next(iter(like.users))) in VIEWS:
            like = next(iter(like.users))
        found = shape_of_node(like)
        shard = Shard(len(found) - 2, (found[-2],))
        return shard if like is node else viewed(shard, found, shape)

    def check_whole(self, node: Any, out: Shard) -> None:
        """Note inputs that every rank has and takes a part of, and parameters whose gradients are then partial.

        ``NotDivisibleError`` where gradients of other values would be parts of a sum.
        """
        for one in sliced_inputs(node, self.at, out):
            if one in self.after and out.origins:
                raise NotDivisibleError(out)
            if len(out.blocks) > 1:
                raise NotDivisibleError(out)
            self.layout.changes[node, one] = SLICE
        for one in node.all_input_nodes:
            if one in self.after and self.at[one] is None and (node, one) not in self.layout.changes:
                if one.name not in self.trained:
                    raise NotDivisibleError(out)
                self.layout.partial[one] = None

    def own_rows(self, node: Any, out: Placement) -> None:
        """Let a node take a rank's part of rows that every rank has, such as their numbers."""
        for one in node.all_input_nodes:
            shape = shape_of_node(one) if hasattr(one.meta.get("val"), "shape") else ()
            if out is not None and self.at[one] is None and shape[:1] == (out.size,):
                self.layout.changes[node, one] = SLICE

    def linear(self, one: Linear) -> Placement:
        shard, rank = self.at[one.x], len(shape_of_node(one.node))
        if shard is not None and not shard.origins:
            if self.experts != WHOLE and chooses(one.node, self.layout.linears):
                self.layout.partial[one.parameter] = None
                return shard
            if self.experts == APART and is_of_experts(one.node):
                self.divide(one.parameter, Shard(0, (shape_of_node(one.parameter)[0],)))
                self.layout.apart[one.node] = one.parameter
                return shard
            self.layout.changes[one.node, one.x] = GATHER
            self.tokens[one.node] = shard
            shard = None
        if shard is None:
            if one.node in self.left:
                self.layout.whole[one.node] = None
                return None
            size = shape_of_node(one.node)[-1]
            multiple = self.multiple if one.node is self.head else 0
            found = Shard(rank - 1, self.blocks.get(one.node, (size,)), frozenset((one.node,)), multiple)
            made = self.column(one.node, one.parameter, one.columns, found, one.bias)
            if one.node is self.head and not self.loss:
                self.layout.gathered[one.node] = None
                return None
            return made
        if shard.axis != len(shape_of_node(one.x)) - 1:
            raise NotDivisibleError(shard)
        self.divide(one.parameter, shard.on(one.rows))
        self.layout.roles[one.node] = ROW
        if is_of_experts(one.node):
            return next((self.tokens[origin] for origin in shard.origins if origin in self.tokens), None)
        return self.of_sequence(one.node) if self.is_sequence else None

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
        self.layout.parameters[parameter] = shard if known is None else known.with_origins(shard)


def _linear(exported: Any, node: Any, experts: str) -> Linear | None:
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
    while node.op == "call_function" and name_of(node) in _PASSING and len(shape_of_node(node)) <= 3:
        if name_of(node) in ("t", "transpose", "permute"):
            order = permutation_of(node, len(shape_of_node(node)))
            if order[:-2] != [*range(len(order) - 2)]:
                return None
            turned ^= order[-2:] != sorted(order[-2:])
        node = node.args[0]
    return (node, turned) if node.name in exported.graph_signature.inputs_to_parameters else None


def _head(exported: Any, linears: Mapping[Any, Linear]) -> Any:
    """Return the layer that scores the words of a vocabulary: the last one with as many columns as an embedding has."""
    sizes = {shape_of_node(node.args[0])[0] for node in exported.graph.nodes if name_of(node) == _LOOKUP}
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
