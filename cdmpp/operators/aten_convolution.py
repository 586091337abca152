"""Convolutions of an exported graph -> framework operators. Square ones were measured; the others have stand-ins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from cdmpp.operators.aten_layout import shape_of
from cdmpp.operators.operator import EagerOperator

CONVOLUTIONS = tuple(f"{name}{n}d" for name in ("conv", "conv_transpose") for n in (1, 2, 3)) + ("convolution",)
"""Names of convolutions in ATen."""
STRIP = "cdmpp_strip"
"""Key in the ``meta`` of a convolution of a part of an image, next to which rows of other parts were put: shape of the
part, and the padding of the whole image. It counts as a convolution of the part with that padding."""
_NEAR = 0.1
"""Share of the pixels that a square image may have more or less."""


class Convolution(NamedTuple):
    """The arguments of a node, the sizes along each axis of the image."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    is_transposed: bool

    @property
    def is_square(self) -> bool:
        """Return True for the kind of convolution that was measured."""
        if len(self.kernel) != 2 or self.is_transposed or set(self.dilation) != {1}:
            return False
        return all(one[0] == one[1] for one in (self.kernel, self.stride, self.padding))


def image_of(node: Any) -> list[int]:
    """Return the shape of the image that a convolution reads."""
    shape, extents = shape_of(node.args[0].meta["val"]), node.meta[STRIP][0] if STRIP in node.meta else ()
    return [*shape[: len(shape) - len(extents)], *extents]


def has_bias(node: Any) -> bool:
    """Return True if the node adds a bias."""
    return len(node.args) > 2 and node.args[2] is not None


def stands_for(node: Any, name: str) -> str:
    """Return the kind of convolution of the node if ``convolution_of`` gives another one in its place; else nothing."""
    found = geometry_of(node, name)
    if found.is_square:
        image, out = image_of(node), shape_of(node.meta["val"])
        return "" if _as_square(found, image, out) else "convolution of an image that is far from square"
    if found.is_transposed:
        return "transposed convolution"
    if len(found.kernel) != 2:
        return f"convolution over {len(found.kernel)} axes"
    return "dilated convolution" if set(found.dilation) != {1} else "convolution that is not square"


def convolution_of(node: Any, name: str, image: Sequence[int], out: Sequence[int], dtype: str) -> EagerOperator:
    """Return the operator of one ``conv2d``, ``convolution`` or the like without its bias.

    ``image`` and ``out`` are shapes, which begin with the batch if there is one.

    What is not square becomes the 1x1 convolution of as many operations, the matrix product that libraries make of
    it: its channels are those under all taps of the filter, its image has the pixels of the result. Of a transposed
    one, where each pixel of the input gives all taps of the result, these are its output channels.
    """
    found = geometry_of(node, name)
    axes, groups, taps = len(found.kernel), found.groups, math.prod(found.kernel)
    batch = math.prod(image[: -axes - 1])
    channels, made, pixels = image[-axes - 1], out[-axes - 1], math.prod(image[-axes:])
    if found.is_square and (sizes := _as_square(found, image, out)):
        return _made(batch, channels, made, pixels, dtype, groups=groups, **sizes)
    if found.is_transposed:
        return _made(batch, channels, made * taps, pixels, dtype, groups=groups, kernel=1)
    return _made(batch, channels * taps, made, math.prod(out[-axes:]), dtype, groups=groups, kernel=1)


def _made(batch: int, channels: int, out: int, pixels: int, dtype: str, **options: int) -> EagerOperator:
    """An image that is not square counts as a square one of as many pixels, or under one tap as so many of one."""
    side = round(math.sqrt(pixels))
    if options["kernel"] == 1 and not _near(side**2, pixels):
        batch, side = batch * pixels, 1
    sizes = {"batch": batch, "in_channels": channels, "out_channels": out, "in_size": side, **options}
    return EagerOperator("conv2d", sizes, dtype)


def _as_square(found: Convolution, image: Sequence[int], out: Sequence[int]) -> dict[str, int]:
    """Options of the convolution of a square image; none where that would have other pixels, or give other ones."""
    sizes = {"kernel": found.kernel[0], "stride": found.stride[0], "padding": found.padding[0]}
    side = round(math.sqrt(math.prod(image[-2:])))
    after = (side + 2 * sizes["padding"] - sizes["kernel"]) // sizes["stride"] + 1
    return sizes if _near(side**2, math.prod(image[-2:])) and _near(after**2, math.prod(out[-2:])) else {}


def _near(given: int, real: int) -> bool:
    return abs(given - real) <= _NEAR * real


def geometry_of(node: Any, name: str) -> Convolution:
    """Read the arguments of a node: they stand in three orders, and the last ones may be missing."""
    kernel = tuple(int(size) for size in node.args[1].meta["val"].shape[2:])
    given, is_transposed = node.args[3:], name.startswith("conv_transpose")
    orders = {"convolution": "stride padding dilation transposed output groups"}
    order = orders.get(
        name, "stride padding output groups dilation" if is_transposed else "stride padding dilation groups"
    )
    said: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "transposed": is_transposed}
    said |= dict(zip(order.split(), given, strict=False))
    padding, dilation = node.meta[STRIP][1] if STRIP in node.meta else said["padding"], _each(said["dilation"], kernel)
    if isinstance(padding, str):  # an odd number of added pixels counts as one less
        padding = [
            (size - 1) * step // 2 if padding == "same" else 0 for size, step in zip(kernel, dilation, strict=True)
        ]
    stride, groups = _each(said["stride"], kernel), int(said["groups"])
    return Convolution(kernel, stride, _each(padding, kernel), dilation, groups, bool(said["transposed"]))


def _each(value: Any, kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Along each axis; one value stands for all."""
    values = [value] if isinstance(value, int) else list(value)
    return tuple(int(one) for one in (values * len(kernel) if len(values) == 1 else values))
