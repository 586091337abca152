"""Roles of layers under tensor parallelism: which are divided by columns and by rows, and what lies between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp.operators.aten import name_of
from cdmpp.plans.strategies.tensor_layout import COLUMN, GATHER, LOSS, ROW, SLICE, Layout
from cdmpp.plans.strategies.tensor_linears import LOOKUP, PASSING, Linear, head_of, linear_of
from cdmpp.plans.strategies.tensor_rules import (
    VIEWS,
    Placement,
    arguments_of,
    passed_on,
    shape_of_node,
    sliced_inputs,
)
from cdmpp.plans.strategies.tensor_shard import NotDivisibleError, Shard, viewed
from cdmpp.plans.strategies.tensor_tokens import APART, WHOLE, chooses, is_of_experts, passed_tokens

_CROSS_ENTROPY = "cross_entropy_loss"


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
    linears = {node: one for node in exported.graph.nodes if (one := linear_of(exported, node, experts)) is not None}
    head = head_of(exported, linears) if multiple else None
    loss = loss and head is not None
    words = shape_of_node(head)[-1] if head is not None else 0
    left, blocks = dict[Any, None](), dict[Any, tuple[int, ...]]()
    lookups = {
        node: ROW if shape_of_node(node.args[0])[0] == words else COLUMN
        for node in exported.graph.nodes
        if name_of(node) == LOOKUP and node.args[0].name in exported.graph_signature.inputs_to_parameters
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
        while name_of(node) in PASSING and len(node.users) == 1 and node not in self.layout.roles:
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
