"""ExpandableSegment: PyTorch's allocator of one stream of a GPU with ``expandable_segments:True``, block by block.

``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.1 to 2.13: all large tensors of a stream lie in one range of addresses,
to whose end the device adds pages of 20 MiB. The smallest free block that is large enough is taken, the first of equal
ones; the one at the end only where no other is. What is left of a block stays free from 512 bytes on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from cdmpp.plans.sizes import MIB

_SMALLEST, _PAGE = 512, 20 * MIB


@dataclass
class ExpandableSegment:
    """One stream takes blocks, which are known by their addresses, and lets them go."""

    reserved_bytes: int = 0
    """Bytes of its pages; none is given back before the device is full."""
    _free: list[tuple[int, int]] = field(default_factory=list)
    _sizes: dict[int, int] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)
    _used: dict[int, int] = field(default_factory=dict)

    def take(self, n_bytes: int) -> int:
        """Return the address of a block for a tensor of so many bytes."""
        size = max(_SMALLEST, -(-n_bytes // _SMALLEST) * _SMALLEST)
        last = self._ends.get(self.reserved_bytes)
        place = bisect_left(self._free, (size, -1))
        if place < len(self._free) and self._free[place][1] == last:
            place += 1
        if place < len(self._free):
            begin = self._free[place][1]
            whole = self._remove(begin)
        else:
            begin = self.reserved_bytes if last is None else last
            whole = 0 if last is None else self._remove(last)
            more = max(0, -(-(size - whole) // _PAGE) * _PAGE)
            self.reserved_bytes, whole = self.reserved_bytes + more, whole + more
        if whole > size:
            self._keep(begin + size, whole - size)
        self._used[begin] = size
        return begin

    def free(self, begin: int) -> None:
        """Let the block at an address go; free neighbours are joined."""
        size = self._used.pop(begin)
        if begin in self._ends:
            before = self._ends[begin]
            size += self._remove(before)
            begin = before
        if begin + size in self._sizes:
            size += self._remove(begin + size)
        self._keep(begin, size)

    def _keep(self, begin: int, size: int) -> None:
        insort(self._free, (size, begin))
        self._sizes[begin], self._ends[begin + size] = size, begin

    def _remove(self, begin: int) -> int:
        size = self._sizes.pop(begin)
        del self._ends[begin + size]
        self._free.pop(bisect_left(self._free, (size, begin)))
        return size
