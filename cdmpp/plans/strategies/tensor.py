"""Tensor parallelism: each rank has some columns or rows of every linear layer, as ``parallelize_module`` divides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import ROLE, DividedExport, LocalGraph, bytes_of_value, title_of
from cdmpp.operators.aten import name_of
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.plans.strategies.tensor_layout import COLUMN, ROW, Layout, layout_of
from cdmpp.plans.strategies.tensor_rules import (
    CUTS,
    PIECES,
    VIEWS,
    axis_of,
    cut_of,
    piece_sizes,
    shape_of_node,
    sliced_inputs,
)
from cdmpp.plans.strategies.tensor_shard import Shard
from cdmpp.steps.strategy import OperatorStrategy

BLOCKS = "cdmpp_blocks"
"""Key in the ``meta`` of a weight that is divided: sizes of the blocks of which each rank has a part."""


@STRATEGIES.register
@dataclass(frozen=True)
class Tensor(OperatorStrategy):
    """Ranks sum up what layers of rows give, and the gradients of what layers of columns read.

    Roles are found from the graph: what reads whole values is divided by columns, what reads such parts by rows, and
    between them ranks have some heads of attention each. What needs whole values leaves the layers before it whole. As
    PyTorch runs it, each of several layers of columns with the same input sums up its gradient by itself.
    """

    name = "tensor"
    title = "tensor parallel"
    degrees = ("tp",)
    replicates = False

    def limit(self, exported: Any) -> tuple[int, str]:
        """Return the most ranks that have equal parts of everything, and the layer that allows no more."""
        return layout_of(exported).limit()

    def divide(self, exported: Any, ranks: int) -> DividedExport:
        """Write the graph of one rank; ``CdmppError``: no layer to divide, or one that cannot be divided evenly."""
        layout = layout_of(exported)
        if not layout.parameters:
            raise CdmppError(f"{self.name}={ranks}: the network has no pair of linear layers that can be divided")
        layout.check(ranks, self.name, "PyTorch")
        return _Divided(layout, ranks).run()


class _Divided:
    """It writes the graph of one rank."""

    def __init__(self, layout: Layout, ranks: int) -> None:
        self.layout, self.ranks, self.local = layout, ranks, LocalGraph(layout.exported)

    def run(self) -> DividedExport:
        for node in self.layout.exported.graph.nodes:
            if (shard := self.layout.parameters.get(node)) is not None:
                new = self.local.placeholder(node, shard.local(shape_of_node(node), self.ranks), shard.axis)
                new.meta[BLOCKS] = shard.blocks
            elif node.op == "placeholder":
                self.local.placeholder(node)
            elif node.op != "call_function":
                self.local.copy(node)
            else:
                self.call(node)
        if self.layout.whole:
            names = ", ".join(dict.fromkeys(map(title_of, self.layout.whole)))
            self.local.warnings.append(f"tensor: these linear layers run whole on every rank: {names}")
        return self.local.done()

    def call(self, node: Any) -> None:
        role, shard = self.layout.roles.get(node, ""), self.layout.at[node]
        args, kwargs = self.arguments(node, shard)
        new = self.local.copy(node, args, kwargs)
        self.check(node, shard, new)
        title = title_of(node)
        if role == ROW:
            new.meta[ROLE] = ("sum",)
            self.local.exchange("all_reduce", new, "after", bytes_of_value(new.meta["val"]), f"{title} output")
        elif role == COLUMN and node in self.layout.linears:
            x = self.local.nodes[self.layout.linears[node].x]
            if x in self.local.learns:
                size = bytes_of_value(x.meta["val"])
                self.local.exchange("all_reduce", new, "after gradients", size, f"{title} gradient of input", of=x)

    def check(self, node: Any, shard: Shard | None, new: Any) -> None:
        """Raise ``CdmppError`` if a node has another shape than its part of the whole value should have."""
        if shard is None or isinstance(new.meta["val"], tuple | list):
            return
        expected, own = shard.local(shape_of_node(node), self.ranks), shape_of_node(new)
        if expected != own:
            raise CdmppError(f"tensor={self.ranks}: {node.target} ({title_of(node)}) gives {own} instead of {expected}")

    def arguments(self, node: Any, shard: Shard | None) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments of a node on one rank: sizes in them are those of its parts."""
        import torch

        args, kwargs = self.local.arguments(node)
        name, source = name_of(node), node.args[0] if node.args else None
        before = self.layout.at.get(source) if hasattr(source, "meta") else None
        if shard is None:
            return args, kwargs
        if name in VIEWS:
            return self.reshaped(node, shard), {}
        if name == "expand":
            local = shard.local(shape_of_node(node), self.ranks)
            return (args[0], list(local)), {}
        if before is not None and name in (*PIECES, *CUTS) and axis_of(node) == before.axis:
            if name in PIECES:
                sizes = [sum(one.local_blocks(self.ranks)) for one in before.pieces(piece_sizes(node))]
                return (args[0], self.piece_argument(node, sizes), *args[2:]), kwargs
            return self.cut(node, before, args), {}
        if not self.layout.roles.get(node):
            parts = {
                self.local.nodes[one]: self.sliced(one, node, shard)
                for one in sliced_inputs(node, self.layout.at, shard)
                if hasattr(one.meta.get("val"), "shape")
            }
            if parts:
                args, kwargs = torch.fx.map_arg((args, kwargs), lambda one: parts.get(one, one))
        return args, kwargs

    def reshaped(self, node: Any, shard: Shard) -> tuple[Any, ...]:
        local = list(shard.local(shape_of_node(node), self.ranks))
        args = self.local.arguments(node)[0]
        name = name_of(node)
        if name == "unflatten":
            dim = axis_of(node)
            count = len(shape_of_node(node)) - len(shape_of_node(node.args[0])) + 1
            return (args[0], dim, local[dim : dim + count])
        if name in ("view", "reshape", "_unsafe_view"):
            return (args[0], local)
        return args

    def piece_argument(self, node: Any, sizes: Sequence[int]) -> Any:
        """The second argument of what cuts an axis into pieces: a size, some, or how many."""
        own = node.args[1]
        if name_of(node) in ("chunk", "unsafe_chunk", "tensor_split"):
            return own
        return list(sizes) if isinstance(own, tuple | list) else sizes[0]

    def cut(self, node: Any, before: Shard, args: Sequence[Any]) -> tuple[Any, ...]:
        start, size = cut_of(node)
        first = before.pieces([start])[0].local_blocks(self.ranks) if start else ()
        own = before.pieces([one for one in (start, size) if one])[-1].local_blocks(self.ranks)
        axis, begin, many = axis_of(node), sum(first), sum(own)
        return (args[0], axis, begin, many if name_of(node) == "narrow" else begin + many)

    def sliced(self, one: Any, node: Any, shard: Shard) -> Any:
        """Take one rank's part of what every rank has: a view."""
        import torch

        axis = shard.axis - len(shape_of_node(node)) + len(shape_of_node(one))
        (size,) = shard.local_blocks(self.ranks)
        own = self.local.call(torch.ops.aten.slice.Tensor, (self.local.nodes[one], axis, 0, size), {}, node)
        own.meta[ROLE] = ("slice", axis)
        return own
