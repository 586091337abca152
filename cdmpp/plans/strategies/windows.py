"""Windows of convolutions and poolings: what they read along each axis of an image, and the rows around a part."""

from __future__ import annotations

from typing import Any, NamedTuple

from cdmpp.network.eager.divided import convolution_at
from cdmpp.operators.aten import name_of
from cdmpp.operators.aten_pooling import POOLS


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
