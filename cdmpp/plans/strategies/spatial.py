"""Spatial parallelism: each rank has a strip or a block of every image, as in ParaDL (HPDC'21)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import (
    ROLE,
    DividedExport,
    LocalGraph,
    bytes_of_value,
    convolution_at,
    convolutions,
    gathered,
    part,
    smallest,
    title_of,
)
from cdmpp.operators.aten import is_pointwise, name_of
from cdmpp.operators.aten_convolution import STRIP
from cdmpp.operators.aten_norm import BATCH_NORMS
from cdmpp.operators.aten_pooling import POOLS
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.steps.strategy import OperatorStrategy

_LOCAL = (
    *BATCH_NORMS, "dropout", "dropout_", "feature_dropout", "feature_dropout_",
    *("clone", "contiguous", "getitem", "detach"),
)  # fmt: skip
"""Operators that compute a part of an image from that part, next to elementwise ones; of ``cat`` those of channels."""


class Window(NamedTuple):
    """A convolution or a pooling reads so much along each axis of an image."""

    kernel: tuple[int, ...]
    """Elements from the first to the last that it reads, dilation included."""
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def halo(self, axis: int, image: int, out: int) -> tuple[int, int]:
        """Return the rows before and behind a part of ``image`` rows that its ``out`` rows of the result need.

        The part has neighbours on both sides. Negative ones behind are to be left out, so that no more rows result.
        """
        before = self.padding[axis]
        behind = (out - 1) * self.stride[axis] + self.kernel[axis] - image - before
        is_right = (image + before - self.kernel[axis]) // self.stride[axis] + 1 == out
        return before, 0 if behind < 0 and is_right else behind

    def gradient_halo(self, axis: int, image: int, out: int) -> tuple[int, int]:
        """Return the rows of the gradient of the result, before and behind its own, that the image's gradient needs."""
        stride, padding = self.stride[axis], self.padding[axis]
        first = -((self.kernel[axis] - 1 - padding) // stride)
        last = (image - 1 + padding) // stride
        return max(0, -first), max(0, last - (out - 1))


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
        return smallest((math.prod(extents), title_of(node)) for node, extents in _images(exported).items())

    def divide(self, exported: Any, ranks: int) -> DividedExport:
        """Write the graph of one rank; ``CdmppError``: images that are too small for so many ranks."""
        self.check_limit(exported, ranks, "elements in a channel")
        return _Divided(exported, _blocks(exported, ranks)).run()


def _blocks(exported: Any, ranks: int) -> tuple[int, ...]:
    """Parts along each axis of the images, so that the fewest elements lie next to a part."""
    images = _images(exported)
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


def _axes(exported: Any) -> int:
    """Axes of the images that are convolved most; 0 without convolutions."""
    counts = [len(one.kernel) for _, one in convolutions(exported)]
    return max(set(counts), key=counts.count, default=0)


def _images(exported: Any) -> dict[Any, tuple[int, ...]]:
    """Nodes whose values are divided -> the extents of their images."""
    axes, divided = _axes(exported), dict[Any, tuple[int, ...]]()
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if _is_image(exported, node, axes) or (
            any(one in divided for one in node.all_input_nodes) and _kind(node, divided, axes) in ("window", "local")
        ):
            value = value[0] if isinstance(value, tuple | list) else value
            divided[node] = tuple(int(size) for size in value.shape[-axes:])
    return divided


def _is_image(exported: Any, node: Any, axes: int) -> bool:
    """True for an input of the network that has images."""
    value = node.meta.get("val")
    is_given = node.op == "placeholder" and node.name in exported.graph_signature.user_inputs
    return is_given and axes > 0 and hasattr(value, "dim") and value.dim() == axes + 2 and value.is_floating_point()


def _kind(node: Any, divided: Container[Any], axes: int) -> str:
    """``window``, ``local``, ``average`` of whole images, or ``whole``: what an operator that reads a part needs."""
    name, value = name_of(node), node.meta.get("val")
    if (window := window_of(node, axes)) is not None:
        return "window" if node.args[0] in divided and all(window.kernel) else "whole"
    if name.startswith(("adaptive_avg_pool", "_adaptive_avg_pool")) and set(value.shape[-axes:]) == {1}:
        return "average"
    if name == "mean" and len(node.args) > 1:
        return "average" if {one % (axes + 2) for one in node.args[1]} >= set(range(2, axes + 2)) else "whole"
    if name == "cat" and (node.args[1] if len(node.args) > 1 else 0) % (axes + 2) == 1:
        return "local" if all(one in divided for one in node.all_input_nodes) else "whole"
    if name not in _LOCAL and not is_pointwise(node):
        return "whole"
    others = [one.meta["val"] for one in node.all_input_nodes if one not in divided]
    is_norm = name in BATCH_NORMS
    return "local" if is_norm or all(_is_alike_everywhere(one, axes) for one in others) else "whole"


def _is_alike_everywhere(value: Any, axes: int) -> bool:
    """True for a tensor that does not change along an image."""
    return not hasattr(value, "shape") or value.dim() < axes or set(value.shape[-axes:]) <= {1}


def window_of(node: Any, axes: int) -> Window | None:
    """Return what a convolution or a pooling over ``axes`` axes reads; None for what is neither."""
    name = name_of(node)
    if name in POOLS:
        given = dict(zip((one.name for one in node.target._schema.arguments), node.args, strict=False)) | node.kwargs
        kernel = _each(given["kernel_size"], axes)
        stride = _each(given.get("stride") or given["kernel_size"], axes)
        padding, dilation = (_each(given.get(key, usual), axes) for key, usual in (("padding", 0), ("dilation", 1)))
    elif (found := convolution_at(node)) is not None and len(found.kernel) == axes:
        kernel, stride, padding, dilation = found.kernel, found.stride, found.padding, found.dilation
    else:
        return None
    return Window(tuple((size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)), stride, padding)


def _each(value: Any, axes: int) -> tuple[int, ...]:
    values = [value] if isinstance(value, int) else list(value)
    return tuple(int(one) for one in (values * axes if len(values) == 1 else values))


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
            if _is_image(self.exported, node, self.axes):
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
        kind = _kind(node, self.divided, self.axes) if node.op == "call_function" else "whole"
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
