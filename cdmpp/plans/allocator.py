"""Allocator: the bytes that PyTorch's caching allocator takes from a GPU for tensors of given bytes.

``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.13: a tensor gets a multiple of 512 bytes. Tensors of at most 1 MiB lie
in blocks of 2 MiB, those below 10 MiB in blocks of 20 MiB, larger ones in blocks of their own of a multiple of 2 MiB.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cdmpp.plans.sizes import MIB

_SMALLEST, _LARGE, _LARGE_STEP = 512, 10 * MIB, 2 * MIB
PARTLY_FILLED = 2 * MIB + 20 * MIB
"""Bytes of a block of each kind that is shared, and may be filled in part. Gaps between tensors are not modelled."""
CONTEXT = 500 * MIB
"""Bytes that a process holds before its first tensor: kernels, CUDA's context and the workspace of cuBLAS. An
assumption, not measured by us; ``communicators`` has the buffers of NCCL."""


def taken_bytes(n_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of the block for each tensor."""
    step = np.where(n_bytes >= _LARGE, _LARGE_STEP, _SMALLEST)
    found: NDArray[np.int64] = -(-n_bytes // step) * step
    return found
