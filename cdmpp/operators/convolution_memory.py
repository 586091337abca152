"""What oneDNN holds while a convolution runs on a CPU: copies of its tensors in blocks of channels.

``at::native::ConvParams::use_mkldnn`` and ``mkldnn_convolution`` of torch 2.13, with more than one thread, and the
allocations of oneDNN 3 with AVX-512, as the profiler shows them: inputs and filters are copied into blocks of 16
channels, and what is made so is copied back. Images of fewer channels, and those in ``channels_last``, are read as
they are. The gradient of a filter of 16 bits is summed in float32. Other scratch of a kernel is left out.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cdmpp.operators.aten_convolution import geometry_of, image_of

_BLOCK = 16
"""Floats of 32 bits in a register of AVX-512."""
_FEW = 3
"""The gradient of a filter reads an image of at most so many channels, as of colours, as it is."""
_SMALL = 20480
"""Elements of a single image up to which ATen's own kernel runs."""


class ConvolutionMemory(NamedTuple):
    """Bytes that are held beside operands and result while each of three kernels runs."""

    forward: int = 0
    of_input: int = 0
    of_filter: int = 0


def convolution_memory(node: Any, name: str) -> ConvolutionMemory:
    """Return what a CPU holds for a node of an exported graph.

    Args:
        node: a call of a convolution; ``meta["val"]`` of its arguments tell shapes and strides.
        name: its name in ATen, one of ``CONVOLUTIONS``.
    """
    import torch

    found, image, weight = geometry_of(node, name), node.args[0].meta["val"], node.args[1].meta["val"]
    shape, out = image_of(node), [int(size) for size in node.meta["val"].shape]
    axes, item = len(found.kernel), int(image.dtype.itemsize)
    batch, channels, made = math.prod(shape[: -axes - 1]), shape[-axes - 1], out[-axes - 1]
    read, written = (size * math.prod(one[-axes:]) * batch for size, one in ((channels, shape), (made, out)))
    taps = math.prod(found.kernel)
    if not (found.groups > 1 or min(found.kernel) > 3 or batch > 1 or read > _SMALL):
        columns = 0 if taps == 1 else item * channels * taps * math.prod(out[-axes:])
        return ConvolutionMemory(columns, 0, columns)
    filters = item * int(weight.numel())
    format_ = {2: torch.channels_last, 3: torch.channels_last_3d}.get(axes)
    if format_ and image.dim() == axes + 2 and image.is_contiguous(memory_format=format_) and channels > 1:
        return ConvolutionMemory(filters, filters, 0)
    blocks = [item * size // one * _blocked(one) for size, one in ((read, channels), (written, made))]
    whole = item * read
    back = 2 if max(found.stride) > 1 and found.groups == 1 else 1  # strided ones are copied back in two steps
    copied = 0 if channels < _BLOCK else blocks[0]
    return ConvolutionMemory(
        max(copied, item * written) + filters,
        max(blocks[1], back * whole) + filters,
        blocks[1] + (0 if channels <= _FEW else blocks[0]) + (2 * filters if item == 2 else 0),
    )


def _blocked(channels: int) -> int:
    return -(-channels // _BLOCK) * _BLOCK
