"""The graph of one rank of tensor parallelism, written from the layout of the whole one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import (
    COPIED,
    RETURNS,
    ROLE,
    DividedExport,
    LocalGraph,
    bytes_of_value,
    sliced,
    title_of,
)
from cdmpp.operators.aten import name_of
from cdmpp.plans.strategies.tensor_layout import COLUMN, GATHER, LOSS, ROW, SLICE, Layout, Rules
from cdmpp.plans.strategies.tensor_rules import (
    CUTS,
    PIECES,
    VIEWS,
    arguments_of,
    axis_of,
    cut_of,
    piece_sizes,
    shape_of_node,
)
from cdmpp.plans.strategies.tensor_shard import Shard
from cdmpp.plans.strategies.tensor_tokens import is_of_experts
from cdmpp.programs.experts import COUNT_BYTES, IMBALANCE

ASYNC_IS_MODELLED = (
    "async_tp: how much of gathers and scatters products hide is by a model that was compared with no run of its own"
)
"""Warning of each plan with it."""
BLOCKS = "cdmpp_blocks"
"""Key in the ``meta`` of a weight that is divided: sizes of the blocks of which each rank has a part."""


class DividedTensors:
    """It writes the graph of one rank.

    Collectives along another axis than the first are preceded or followed by a copy, as those of
    ``torch.distributed._functional_collectives`` are; Megatron's and nanotron's activations have the sequence first, so
    that theirs are not. PyTorch waits at once for sums of the gradients of whole inputs;
    other results are waited for where they are read.
    """

    def __init__(
        self, layout: Layout, ranks: int, rules: Rules, shared_inputs: bool = False, overlap: bool = True,
        is_async: bool = False,
    ) -> None:  # fmt: skip
        self.layout, self.ranks, self.local = layout, ranks, LocalGraph(layout.exported)
        self.is_torch = rules.framework == "torch"
        shared_inputs = shared_inputs or not self.is_torch
        self.shared_inputs, self.overlap, self.is_async = shared_inputs, overlap, is_async and overlap
        self.known = dict[Any, Any]()
        """Node whose sequences were gathered -> the new node that has all, where layers share it."""
        self.last = self._last() if shared_inputs else {}

    def part(self, shard: Shard, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one rank's part of a value."""
        return shard.local(shape, self.ranks)

    def parts(self, shard: Shard) -> tuple[int, ...]:
        """Return the size of one rank's part of each block."""
        return shard.local_blocks(self.ranks)

    def readers(self, x: Any) -> list[Any]:
        """List what gathers the sequences of a value."""
        return [node for node, one in self.layout.changes if one is x and self.layout.changes[node, one] == GATHER]

    def _last(self) -> dict[Any, Any]:
        """What several layers of columns read -> the first of them, whose gradient is made last."""
        found = dict[Any, Any]()
        for node, one in self.layout.linears.items():
            if self.layout.roles.get(node) == COLUMN:
                found.setdefault(one.x, node)
        return found

    def run(self) -> DividedExport:
        """Return the graph."""
        for node in self.layout.exported.graph.nodes:
            if (shard := self.layout.parameters.get(node)) is not None:
                new = self.local.placeholder(node, self.part(shard, shape_of_node(node)), shard.axis)
                new.meta[BLOCKS] = shard.blocks
            elif node.op == "placeholder":
                self.local.placeholder(node)
            elif node.op != "call_function":
                self.local.copy(node)
            else:
                self.call(node)
        self.updates()
        self.tensors()
        if self.layout.whole:
            names = ", ".join(dict.fromkeys(map(title_of, self.layout.whole)))
            self.local.warnings.append(f"tensor: these linear layers run whole on every rank: {names}")
        if self.is_async:
            self.local.warnings.append(ASYNC_IS_MODELLED)
        return self.local.done()

    def updates(self) -> None:
        """Sum up gradients of parameters that ranks have in common, and of which each makes a part.

        DTensor does so where the optimizer reads them; Megatron once, all together.
        """
        named = self.layout.exported.graph_signature.inputs_to_parameters
        found = {named[node.name].removeprefix("inner."): self.local.nodes[node] for node in self.layout.partial}
        if self.is_torch:
            for name, new in found.items():
                self.exchange("all_reduce", new, "update", bytes_of_value(new.meta["val"]), f"{name} gradient", new)
        elif found:
            size, first = sum(bytes_of_value(new.meta["val"]) for new in found.values()), next(iter(found.values()))
            self.exchange("all_reduce", first, "update once", size, "gradients of parts, together", first)

    def tensors(self) -> None:
        """Name the parameters of the layers that ``parallelize_module`` divides, and of norms along the sequence."""
        named, own = self.layout.exported.graph_signature.inputs_to_parameters, list[Any](self.layout.partial)
        for node, role in self.layout.roles.items():
            if (one := self.layout.linears.get(node)) is not None:
                own += [one.parameter, one.bias] if one.bias is not None else [one.parameter]
            elif role != LOSS:
                own.append(node.args[0])
        self.local.tensors |= {named[one.name] for one in own}

    def exchange(self, kind: str, node: Any, when: str, size: int, title: str, of: Any, blocks: bool = False) -> None:
        """Note an exchange, as ``LocalGraph.exchange``."""
        self.local.exchange(kind, node, when, size, title, of=of, in_order=True, blocks=blocks or not self.overlap)

    def call(self, node: Any) -> None:
        """Add an operator, with the exchanges next to it."""
        role, shard = self.layout.roles.get(node, ""), self.layout.at[node]
        changed = {
            one: self.changed(node, one, self.layout.changes[node, one])
            for one in node.all_input_nodes
            if (node, one) in self.layout.changes
        }
        before = {one: self.local.nodes[one] for one in changed}
        self.local.nodes |= changed
        if node in self.layout.apart:
            self.of_experts(node)
        elif role == LOSS:
            self.loss(node)
        elif role == ROW and node not in self.layout.linears:
            self.lookup(node, shard)
        else:
            args, kwargs = self.arguments(node, shard)
            new = self.local.copy(node, args, kwargs)
            if role == ROW:
                self.summed(node, new, shard)
            elif role == COLUMN and node in self.layout.linears:
                self.column(node, new)
            elif node in self.layout.sliced:
                self.local.nodes[node] = self.slice(node, node, new, shard)
        self.local.nodes |= before
        self.check(node, shard)

    def column(self, node: Any, new: Any) -> None:
        """Sum up the gradient of what a layer of columns reads, where that is no gathered sequence.

        Megatron keeps a rank's own part of a sequence, and gathers it again while the gradient of the input is made,
        for that of the weight (``LinearWithGradAccumulationAndAsyncCommunication``).
        """
        import torch

        one, title = self.layout.linears[node], title_of(node)
        x = self.local.nodes[one.x]
        is_sequence = (node, one.x) in self.layout.changes
        if x in self.local.learns and not is_sequence and self.last.get(one.x, node) is node:
            size = bytes_of_value(x.meta["val"])
            when, blocks = ("after gradients", True) if self.is_torch else ("after gradient", False)
            self.exchange("all_reduce", new, when, size, f"{title} gradient of input", x, blocks)
        is_again = is_sequence and not (self.is_torch or self.is_async or is_of_experts(node))
        if is_again and self.last.get(one.x, node) is node:
            again = f"{title} input, again"
            self.exchange("all_gather", new, "beside gradient", bytes_of_value(x.meta["val"]), again, x)
        if is_sequence and self.is_async:
            whole, title = x.meta["val"], f"{title} input"
            if not self.shared_inputs or next(iter(self.readers(one.x))) is node:
                self.exchange("all_gather", new, "beside", bytes_of_value(whole), title, x)
            if x in self.local.learns and self.last.get(one.x, node) is node:
                self.exchange("reduce_scatter", new, "beside gradient", bytes_of_value(whole), f"{title}, gradient", x)
        if node in self.layout.gathered:
            shard = Shard(len(shape_of_node(node)) - 1, (shape_of_node(node)[-1],))
            whole = self.joined(node, new, shard, f"{title} output", is_summed=False)
            if (padded := whole.meta["val"].shape[shard.axis]) > shard.size:
                args = (whole, shard.axis, 0, shard.size)
                whole = self.local.call(torch.ops.aten.slice.Tensor, args, {}, node)
                whole.meta[ROLE] = ("unpadded", padded)
            self.local.nodes[node] = whole

    def of_experts(self, node: Any) -> None:
        """Add a product by the experts of one rank, to which all ranks send tokens, and which sends them back.

        Before, they tell each other how many will come, as ``Expert`` has it.
        """
        import torch

        if node.meta.get(IMBALANCE, 1.0) > 1:
            raise CdmppError(
                f"tensor={self.ranks}: {title_of(node)} has a busiest expert (moe_imbalance), which experts apart "
                "under tensor parallelism do not support: take divided or whole"
            )
        experts, title = shape_of_node(node.args[1])[0], title_of(node)
        same = [one for one in self.layout.apart if title_of(one) == title]
        before = {one: self.local.nodes[one] for one in node.all_input_nodes}
        for one, new in before.items():
            if shape_of_node(one) == (experts,):  # ends of the rows of each expert
                args = (new, 0, 0, experts // self.ranks)
                self.local.nodes[one] = self.local.call(torch.ops.aten.slice.Tensor, args, {}, one)
        x = self.local.nodes[node.args[0]]
        size, made = bytes_of_value(x.meta["val"]), self.local.copy(node)
        self.local.nodes |= before
        if node is same[0]:
            self.exchange("all_to_all", made, "before", COUNT_BYTES * experts, f"{title} token counts", None)
            self.exchange("all_to_all", made, "before", size, f"{title} dispatch", x)
            if x in self.local.learns:
                self.exchange("all_to_all", made, "after gradient", size, f"{title} gradient of dispatch", x)
        if node is same[-1]:
            size = bytes_of_value(made.meta["val"])
            self.exchange("all_to_all", made, "after", size, f"{title} combine", made)
            if made in self.local.learns:
                self.exchange("all_to_all", made, "before gradient", size, f"{title} gradient of combine", made)

    def changed(self, node: Any, one: Any, how: str) -> Any:
        """Return what a node reads in place of another: all of a sequence, or a part of what every rank has."""
        new, shard = self.local.nodes[one], self.layout.at[one]
        if how == SLICE:
            out = self.layout.at[node]
            assert out is not None
            axis = out.axis - len(shape_of_node(node)) + len(shape_of_node(one))
            return self.slice(node, one, new, out.on(axis))
        assert how == GATHER and shard is not None
        if self.shared_inputs and one in self.known:
            return self.known[one]
        self.known[one] = self.joined(one, new, shard, f"{title_of(node)} input", is_summed=True)
        return self.known[one]

    def slice(self, node: Any, one: Any, new: Any, shard: Shard | None) -> Any:
        """Take one rank's part of what every rank has; where that learns, all get the whole gradient."""
        import torch

        assert shard is not None
        size = sum(shard.local_blocks(self.ranks))  # of several blocks only numbers of rows are taken
        learns, is_copied = new in self.local.learns, any(one > 1 for one in shape_of_node(new)[: shard.axis])
        if learns and is_copied:
            own = sliced(self.local, node, new, size, shard.axis)
        else:
            own = self.local.call(torch.ops.aten.slice.Tensor, (new, shard.axis, 0, size), {}, node)
            own.meta[ROLE] = ("slice", shard.axis)
        if learns:
            size, title = bytes_of_value(new.meta["val"]), f"{title_of(one)} output, gradient"
            self.exchange("all_gather", own if is_copied else new, "before gradient", size, title, new)
        return own

    def joined(self, one: Any, new: Any, shard: Shard, title: str, is_summed: bool) -> Any:
        """Gather the parts of all ranks; of the gradient each copies its part, of the sum of all if they differ."""
        import torch

        cat = self.local.call(torch.ops.aten.cat.default, ([new] * self.ranks, shard.axis), {}, one)
        cat.meta |= {ROLE: ("gather", shard.axis, shard.blocks), RETURNS: cat if is_summed else new}
        if is_summed and not self.is_torch:
            cat.meta |= self.nothing(new, shard, one)
        size = bytes_of_value(cat.meta["val"])
        if is_summed and self.is_async and all(one in self.layout.linears for one in self.readers(one)):
            return cat  # exchanges are beside the products
        self.exchange("all_gather", cat, "before", size, title, cat)
        if is_summed and new in self.local.learns:
            self.exchange("reduce_scatter", cat, "after gradient", size, f"{title}, gradient", cat)
        return cat

    def summed(self, node: Any, new: Any, shard: Shard | None, name: str = "") -> None:
        """Sum up what all ranks give; of a sequence each rank gets its part."""
        import torch

        new.meta[ROLE] = ("sum",)
        title, size = f"{title_of(node)} output", bytes_of_value(new.meta["val"])
        if shard is None:
            self.exchange("all_reduce", new, "after", size, title, new)
            return
        local = self.part(shard, shape_of_node(node))
        view = self.local.call(torch.ops.aten.slice.Tensor, (new, shard.axis, 0, local[shard.axis]), {}, node)
        view.meta[ROLE] = ("scatter", shard.axis, shard.blocks)
        own = self.local.call(torch.ops.aten.clone.default, (view,), {}, node)
        own.meta |= {RETURNS: new, COPIED: new} if self.is_torch else self.nothing(new, shard, node)
        if self.is_async and node in self.layout.linears:
            self.exchange("reduce_scatter", new, "beside", size, title, new)
            if own in self.local.learns:
                self.exchange("all_gather", new, "beside gradient", size, f"{title}, gradient", new)
            self.local.nodes[node] = own
            return
        self.exchange("reduce_scatter", own, "after", size, title, new)
        if own in self.local.learns:
            self.exchange("all_gather", own, "before gradient", size, f"{title}, gradient", new)
        self.local.nodes[node] = own

    def nothing(self, new: Any, shard: Shard, like: Any) -> dict[str, Any]:
        """Return the ``meta`` of a copy along a sequence that lies first: one place of it, next to nothing."""
        import torch

        place = self.local.call(torch.ops.aten.slice.Tensor, (new, shard.axis, 0, 1), {}, like)
        return {RETURNS: place, COPIED: place}

    def own_words(self, words: Any, like: Any, many: int) -> tuple[Any, Any]:
        """Return the numbers of words among those of one rank, zero for others, and which are others."""
        import torch

        aten = torch.ops.aten
        numbers = self.local.call(aten.sub.Tensor, (words, 0), {}, like)
        numbers.meta[ROLE] = ("offset", many)
        low = self.local.call(aten.lt.Scalar, (numbers, 0), {}, like)
        high = self.local.call(aten.ge.Scalar, (numbers, many), {}, like)
        others = self.local.call(aten.bitwise_or.Tensor, (low, high), {}, like)
        return self.local.call(aten.masked_fill.Scalar, (numbers, others, 0), {}, like), others

    def lookup(self, node: Any, shard: Shard | None) -> None:
        """Add an embedding of one rank's words, with zeros for others."""
        import torch

        args, kwargs = self.local.arguments(node)
        numbers, others = self.own_words(args[1], node, shape_of_node(args[0])[0])
        new = self.local.copy(node, (args[0], numbers), kwargs)
        mask = self.local.call(torch.ops.aten.unsqueeze.default, (others, -1), {}, node)
        filled = self.local.call(torch.ops.aten.masked_fill.Scalar, (new, mask, 0.0), {}, node)
        self.local.nodes[node] = filled
        self.summed(node, filled, shard)

    def loss(self, node: Any) -> None:
        """Add the cross-entropy of scores of which a rank has those of its words, as ``loss_parallel`` runs it.

        Megatron and nanotron turn scores into probabilities in place, and these into gradients by one product.
        """
        import torch

        aten, call = torch.ops.aten, self.local.call
        given, (scores, target) = arguments_of(node), self.local.arguments(node)[0][:2]
        title, rows = title_of(node), scores.meta["val"].shape[0]
        size = rows * scores.meta["val"].dtype.itemsize

        def over_ranks(new: Any, role: str, what: str) -> Any:
            new.meta[ROLE] = (role,)
            self.exchange("all_reduce", new, "after", size, f"{title} {what}", new)
            return new

        most = call(aten.amax.default, (call(aten.detach.default, (scores,), {}, node), [1], True), {}, node)
        shifted = call(aten.sub.Tensor, (scores, over_ranks(most, "max", "largest scores")), {}, node)
        powers = call(aten.exp.default, (shifted,), {}, node)
        summed = powers if self.is_torch else call(aten.detach.default, (powers,), {}, node)
        sums = call(aten.sum.dim_IntList, (summed, [1], True), {}, node)
        logs = call(aten.log.default, (over_ranks(sums, "sum", "sums"),), {}, node)
        logs = call(aten.sub.Tensor, (shifted if self.is_torch else powers, logs), {}, node)
        numbers, others = self.own_words(target, node, shape_of_node(scores)[1])
        picked = call(aten.gather.default, (logs, 1, call(aten.unsqueeze.default, (numbers, 1), {}, node)), {}, node)
        if not self.is_torch:
            shifted.meta[RETURNS] = shifted
            for one in (powers, logs, picked):
                one.meta[RETURNS] = most
        mask = call(aten.unsqueeze.default, (others, 1), {}, node)
        picked = call(aten.masked_fill.Scalar, (picked, mask, 0.0), {}, node)
        picked = over_ranks(picked, "sum", "scores of targets")
        found = call(aten.neg.default, (call(aten.squeeze.dim, (picked, 1), {}, node),), {}, node)
        ignored = call(aten.eq.Scalar, (target, given.get("ignore_index", -100)), {}, node)
        found = call(aten.masked_fill.Scalar, (found, ignored, 0.0), {}, node)
        reduction = {0: None, 1: aten.mean.default, 2: aten.sum.default}[given.get("reduction", 1)]
        self.local.nodes[node] = self.local.own[node] = (
            found if reduction is None else call(reduction, (found,), {}, node)
        )

    def check(self, node: Any, shard: Shard | None) -> None:
        """Raise ``CdmppError`` if a node has another shape than its part of the whole value should have."""
        new = self.local.nodes[node]
        if shard is None or isinstance(new.meta["val"], tuple | list):
            return
        expected, own = self.part(shard, shape_of_node(node)), shape_of_node(new)
        if expected != own:
            raise CdmppError(f"tensor={self.ranks}: {node.target} ({title_of(node)}) gives {own} instead of {expected}")

    def arguments(self, node: Any, shard: Shard | None) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments of a node on one rank: sizes in them are those of its parts."""
        args, kwargs = self.local.arguments(node)
        name, source = name_of(node), node.args[0] if node.args else None
        before = self.layout.at.get(source) if hasattr(source, "meta") else None
        if shard is None or (node, source) in self.layout.changes:
            return args, kwargs
        if name in VIEWS:
            return self.reshaped(node, shard, args), kwargs
        if name == "constant_pad_nd" and shard.axis == 0:
            more = shape_of_node(node)[0] - shape_of_node(node.args[0])[0]
            if more % self.ranks:
                raise CdmppError(f"tensor={self.ranks}: {title_of(node)} has {more} further rows: not divided evenly")
            return (args[0], [*args[1][:-1], more // self.ranks], *args[2:]), kwargs
        if name == "expand":
            return (args[0], list(self.part(shard, shape_of_node(node)))), {}
        if before is not None and name in (*PIECES, *CUTS) and axis_of(node) == before.axis:
            if name in PIECES:
                sizes = [sum(self.parts(one)) for one in before.pieces(piece_sizes(node))]
                return (args[0], self.piece_argument(node, sizes), *args[2:]), kwargs
            return self.cut(node, before, args), {}
        return args, kwargs

    def reshaped(self, node: Any, shard: Shard, args: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments of a view, with the shape of one rank's part."""
        local, name = list(self.part(shard, shape_of_node(node))), name_of(node)
        if name == "unflatten":
            axis, more = axis_of(node), len(local) - len(shape_of_node(node.args[0]))
            return (args[0], axis, local[axis : axis + more + 1])
        return (args[0], local) if name in ("view", "reshape", "_unsafe_view") else args

    def piece_argument(self, node: Any, sizes: Sequence[int]) -> Any:
        """Return the second argument of what cuts an axis into pieces: a size, some, or how many."""
        own = node.args[1]
        if name_of(node) in ("chunk", "unsafe_chunk", "tensor_split"):
            return own
        return list(sizes) if isinstance(own, tuple | list) else sizes[0]

    def cut(self, node: Any, before: Shard, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments of a slice that takes whole blocks."""
        start, size = cut_of(node)
        taken = before.pieces([one for one in (start, size) if one])
        first = sum(self.parts(taken[0])) if start else 0
        many = sum(self.parts(taken[-1]))
        return (args[0], axis_of(node), first, many if name_of(node) == "narrow" else first + many)
