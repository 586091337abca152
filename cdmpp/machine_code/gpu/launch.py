"""The launch of a kernel, and the places of its arguments."""

from __future__ import annotations

import math
from typing import NamedTuple

from cdmpp.errors import DataError

LANES = 32
"""Threads of a warp."""
_OLDER = dict.fromkeys((75, 80, 86, 87, 89), (0x160, 0x28))
_ABI = {**_OLDER, 90: (0x210, 0x28), **dict.fromkeys((100, 103, 120, 121), (0x380, 0x37C))}


def abi_of(arch: int) -> tuple[int, int]:
    """Return offsets of arguments and stack size in constant bank 0. ``DataError``: not known for ``sm_arch``."""
    if arch not in _ABI:
        raise DataError(f"machine code of sm_{arch} is not known; known are {', '.join(f'sm_{one}' for one in _ABI)}")
    return _ABI[arch]


class Launch(NamedTuple):
    """A launch has blocks of the grid and threads of a block, by dimension x, y, z."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int = 0
    """Shared memory of a block that is given at the launch."""

    @property
    def blocks(self) -> int:
        """The grid has so many blocks."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """A block has so many threads."""
        return math.prod(self.block)

    @property
    def warps(self) -> int:
        """A block has so many warps."""
        return -(-self.threads // LANES)
