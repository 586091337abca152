"""Communicators: what the library of the collectives holds on a GPU, next to all that PyTorch's allocator knows."""

from __future__ import annotations

from collections.abc import Collection

_BUFFERS = 4_194_304 + 4_915_200 + 524_288
"""Bytes of a connection: buffers of NCCL's protocols Simple, LL128 and LL, as ``init.cc`` has them by default;
``NCCL_BUFFSIZE`` changes the first."""
_CHANNELS = 16
"""Channels of a communicator. An assumption, not measured by us: NCCL takes 2 to 32, as links and sizes have it."""


def communicator_bytes(degrees: Collection[str]) -> int:
    """Return the bytes of a rank's communicators, one for the ranks along each degree.

    Buffers of point-to-point messages come as they are used, and user-registered or symmetric memory is not counted.
    """
    return len({*degrees}) * _CHANNELS * _BUFFERS
