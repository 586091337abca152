"""Spatial parallelism: each rank has a strip or a block of every image, as in ParaDL (HPDC'21)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import (
    ROLE,
    DividedExport,
    LocalGraph,
    bytes_of_value,
    convolution_at,
    gathered,
    part,
    smallest,
    title_of,
)
from cdmpp.operators.aten import name_of
from cdmpp.operators.aten_convolution import STRIP
from cdmpp.plans.strategies.divided_images import images_in, is_image, need_of
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.plans.strategies.windows import window_of
from cdmpp.steps.strategy import OperatorStrategy


@STRATEGIES.register
@dataclass(frozen=True)
class Spatial(OperatorStrategy):
    """Ranks fetch the rows next to their part from their neighbours, before each operator that reads across its edge.

    So it goes up to the first operator that needs whole images, such as a dense layer: its inputs are gathered, or
    where images are averaged, the averages summed up. From there on every rank computes the same. All ranks hold all
    weights, and batch norms use the statistics of a rank's part. Before the gradient of such an operator's input, ranks
    fetch rows of the gradient of its result. The part of an inner rank counts; if sizes cannot be divided evenly, the
    largest one. Images are divided along the axes along which the fewest elements are exchanged.

    A convolution of a part is priced as one of a square image of as many pixels. Rows that were fetched are not among
    those that it reads: before, they were copied next to the part, which is an operator of its own. That copy lives
    until the backward pass, as it does where PyTorch concatenates the rows.
    """

    name = "spatial"
    title = "spatial parallel"
    degrees = ("spatial",)

    def limit(self, exported: Any) -> tuple[int, str]:
        """Return the fewest elements of a channel of an image that is divided, and the layer that has them."""
        return smallest((math.prod(extents), title_of(node)) for node, extents in images_in(exported).items())

    def divide(self, exported: Any, ranks: int) -> DividedExport:
        """Write the graph of one rank; ``CdmppError``: images that are too small for so many ranks."""
        self.check_limit(exported, ranks, "elements in a channel")
        return _Divided(exported, _blocks(exported, ranks)).run()


def _blocks(exported: Any, ranks: int) -> tuple[int, ...]:
    """Parts along each axis of the images, so that the fewest elements lie next to a part."""
    images = images_in(exported)
    least = [min(extents) for extents in zip(*images.values(), strict=True)]
    first = next(iter(images.values()))
    found = [one for one in _factors(ranks, len(least)) if all(a <= b for a, b in zip(one, least, strict=True))]
    if not found:
        raise CdmppError(
            f"spatial={ranks}: the smallest images that are divided have {'x'.join(map(str, least))} elements, of "
            f"which {ranks} ranks cannot have a block each"
        )

    def edges(factors: tuple[int, ...]) -> tuple[float, int]:
        own = [size / factor for size, factor in zip(first, factors, strict=True)]
        faces = [math.prod(own) / size for size, factor in zip(own, factors, strict=True) if factor > 1]
        return sum(faces), len(faces)

    return min(found, key=lambda one: (*edges(one), [-factor for factor in one]))


def _factors(ranks: int, axes: int) -> Iterator[tuple[int, ...]]:
    divisors = [one for one in range(1, ranks + 1) if ranks % one == 0]
    return (one for one in itertools.product(divisors, repeat=axes) if math.prod(one) == ranks)


class _Divided:
    def __init__(self, exported: Any, factors: Sequence[int]) -> None:
        self.exported, self.factors, self.axes = exported, tuple(factors), len(factors)
        self.local, self.divided = LocalGraph(exported), set[Any]()
        """Nodes of the whole graph of which a rank has a part."""
        self.whole = dict[Any, Any]()
        """Those of them that were gathered -> the new node that has all."""

    def run(self) -> DividedExport:
        left = 0
        for node in self.exported.graph.nodes:
            reads = [one for one in node.all_input_nodes if one in self.divided]
            if is_image(self.exported, node, self.axes):
                self.local.placeholder(node, self.part(node))
                self.divided.add(node)
            elif node.op == "placeholder":
                self.local.placeholder(node)
            elif not reads:
                self.local.copy(node)
            else:
                self.call(node, reads)
            found = convolution_at(node)
            left += found is not None and node not in self.divided and set(node.meta["val"].shape[-self.axes :]) != {1}
        if left:
            self.local.warnings.append(f"spatial: {left} convolutions behind the first whole image run on every rank")
        return self.local.done()

    def call(self, node: Any, reads: Sequence[Any]) -> None:
        """Add an operator that reads a part."""
        kind = need_of(node, self.divided, self.axes) if node.op == "call_function" else "whole"
        if kind == "window":
            self.window(node)
        elif kind == "local":
            self.local.copy(node)
        elif kind == "average":
            new = self.local.copy(node)
            new.meta[ROLE] = ("mean",)
            self.local.exchange(
                "all_reduce", new, "after", bytes_of_value(new.meta["val"]), f"{title_of(node)} averages"
            )
        else:
            parts = {one: self.local.nodes[one] for one in reads}
            self.local.nodes |= {one: self.gathered(one) for one in reads}
            self.local.copy(node)
            self.local.nodes |= parts
        if kind in ("window", "local"):
            self.divided.add(node)

    def part(self, node: Any) -> tuple[int, ...]:
        """Shape of the part of a node's value."""
        value = node.meta["val"]
        shape = (value[0] if isinstance(value, tuple | list) else value).shape
        own = [part(int(size), factor) for size, factor in zip(shape[-self.axes :], self.factors, strict=True)]
        return (*map(int, shape[: -self.axes]), *own)

    def gathered(self, node: Any) -> Any:
        """Let every rank have the whole value of a node; the new node that has it."""
        if node not in self.whole:
            new, own = self.local.nodes[node], len(self.local.exchanges)
            for axis in reversed(self.split):
                new = gathered(self.local, node, new, axis - self.axes)
            made = self.local.exchanges[own:]  # all ranks at once, then a copy an axis
            self.local.exchanges[own:] = [replace(made[-1], node=made[0].node)]
            self.whole[node] = new
        return self.whole[node]

    def window(self, node: Any) -> None:
        """Add a convolution or a pooling, behind a copy of its part with the rows next to it."""
        import torch

        window, x = window_of(node, self.axes), self.local.nodes[node.args[0]]
        assert window is not None
        own, out, title = self.part(node.args[0]), self.part(node), title_of(node)
        image, result = own[-self.axes :], out[-self.axes :]
        halos = [(0, 0)] * self.axes
        for axis in self.split:
            halos[axis] = window.halo(axis, image[axis], result[axis])
            most = max(halos[axis])
            if most > image[axis]:
                raise CdmppError(
                    f"spatial: {title} needs {most} rows of its neighbours, which have {image[axis]}: take fewer ranks"
                )
        padding = [0 if axis in self.split else window.padding[axis] for axis in range(self.axes)]
        args = list(self.local.arguments(node)[0])
        if any(any(one) for one in halos):
            fill = -math.inf if "max" in name_of(node) else 0.0
            rows = [size for pair in reversed(halos) for size in pair]
            x = self.local.call(torch.ops.aten.constant_pad_nd.default, (x, rows, fill), {}, node)
            x.meta[ROLE] = ("halo", tuple(halos))
            self._messages(x, node.args[0], image, halos, "before", f"{title} halo")
        new = self._with_padding(node, x, args, padding)
        new.meta[STRIP] = (image, window.padding)
        if self.local.nodes[node.args[0]] in self.local.learns:
            pairs = [(0, 0)] * self.axes
            for axis in self.split:
                pairs[axis] = window.gradient_halo(axis, image[axis], result[axis])
            self._messages(new, node, result, pairs, "before gradient", f"{title} halo of gradient")

    @property
    def split(self) -> list[int]:
        """Axes along which images are divided."""
        return [axis for axis, factor in enumerate(self.factors) if factor > 1]

    def _messages(
        self, new: Any, of: Any, image: Sequence[int], halos: Sequence[tuple[int, int]], when: str, title: str
    ) -> None:
        """Two messages an axis, to the next rank and to the one before; along later axes with what came before."""
        value = of.meta["val"]
        value = value[0] if isinstance(value, tuple | list) else value
        each = math.prod(map(int, value.shape[: -self.axes])) * value.dtype.itemsize
        extents = list(image)
        for axis in self.split:
            row = each * math.prod(extents) // extents[axis]
            stride = math.prod(self.factors[axis + 1 :])
            for rows, shift in ((halos[axis][0], stride), (halos[axis][1], -stride)):
                self.local.exchange(
                    "send_recv", new, when, max(0, rows) * row, title, shift, stride * self.factors[axis]
                )
            extents[axis] += sum(max(0, one) for one in halos[axis])

    def _with_padding(self, node: Any, x: Any, args: list[Any], padding: list[int]) -> Any:
        """Copy a convolution or a pooling of ``x`` with other padding."""
        import torch

        found = convolution_at(node)
        if found is None:
            names = [one.name for one in node.target._schema.arguments]
            place = names.index("padding")
            given = [x, *args[1:]]
            while len(given) <= place:
                given.append([] if names[len(given)] == "stride" else 0)
            given[place] = padding
            return self.local.copy(node, given)
        bias = args[2] if len(args) > 2 else None
        target = getattr(torch.ops.aten, f"conv{self.axes}d").default
        given = [x, args[1], bias, list(found.stride), padding, list(found.dilation), found.groups]
        new = self.local.call(target, given, {}, node, node.name)
        self.local.nodes[node] = new
        return new
