"""CachingAllocator: PyTorch's allocator of a GPU, followed block by block, for the bytes that it reserves.

``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.1 to 2.13 without expandable segments: tensors of at most 1 MiB lie in
segments of 2 MiB, those below 10 MiB in segments of 20 MiB, larger ones in segments of a multiple of 2 MiB. The
smallest free block that is large enough is taken, and divided where more than 512 bytes, or 1 MiB of a large one,
would be left. Free neighbours are joined. Where the device is full, whole free segments are given back first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

from cdmpp.errors import CdmppError
from cdmpp.plans.sizes import MIB

_SMALLEST, _SMALL, _LARGE, _STEP = 512, MIB, 10 * MIB, 2 * MIB


@dataclass(eq=False)
class Block:
    """It is a part of a segment."""

    size: int
    is_small: bool
    """True if it is of a segment of small tensors."""
    number: int = 0
    """Free blocks of one size are taken in the order in which they became free."""
    is_free: bool = False
    before: Block | None = None
    after: Block | None = None


@dataclass
class CachingAllocator:
    """One stream takes blocks and lets them go."""

    limit_bytes: int | None = None
    """Bytes that the device has for it; None: no limit."""
    reserved_bytes: int = 0
    """Bytes of all segments."""
    peak_bytes: int = 0
    """Most bytes of all segments so far."""
    _free: dict[bool, list[tuple[int, int, Block]]] = field(default_factory=lambda: {False: [], True: []})
    _late: deque[tuple[int, Block]] = field(default_factory=deque)
    _clock: int = 0
    _count: int = 0

    def take(self, n_bytes: int) -> Block:
        """Return a block for a tensor of so many bytes; ``CdmppError`` where the device has too few."""
        size = max(_SMALLEST, -(-n_bytes // _SMALLEST) * _SMALLEST)
        is_small = size <= _SMALL
        found = self._found(size, is_small) or self._segment(size, is_small)
        rest = found.size - size
        if rest >= _SMALLEST if is_small else rest > _SMALL:
            other = Block(rest, is_small, before=found, after=found.after)
            if found.after is not None:
                found.after.before = other
            found.after, found.size = other, size
            self._keep(other)
        found.is_free = False
        return found

    def free(self, block: Block, late: int = 0) -> None:
        """Let a block go; ``late``: calls of ``pass_time`` after which another tensor may have it.

        So it is with what another stream used: it is free once the device got there, and the host may be ahead.
        """
        if late:
            self._late.append((self._clock + late, block))
        else:
            self._join(block)

    def pass_time(self, steps: int = 1) -> None:
        """Let the device catch up by so many steps."""
        self._clock += steps
        while self._late and self._late[0][0] <= self._clock:
            self._join(self._late.popleft()[1])

    def wait(self) -> None:
        """Let the host wait until the device has done all."""
        while self._late:
            self._join(self._late.popleft()[1])

    def _found(self, size: int, is_small: bool) -> Block | None:
        blocks = self._free[is_small]
        place = bisect_left(blocks, size, key=lambda one: one[0])
        return blocks.pop(place)[2] if place < len(blocks) else None

    def _segment(self, size: int, is_small: bool) -> Block:
        whole = 2 * MIB if is_small else 20 * MIB if size < _LARGE else -(-size // _STEP) * _STEP
        if self.limit_bytes is not None and self.reserved_bytes + whole > self.limit_bytes:
            self.wait()
            self._give_back()
            if found := self._found(size, is_small):
                return found
            if self.reserved_bytes + whole > self.limit_bytes:
                raise CdmppError(f"{whole:,} bytes more do not fit: {self.reserved_bytes:,} of {self.limit_bytes:,}")
        self.reserved_bytes += whole
        self.peak_bytes = max(self.peak_bytes, self.reserved_bytes)
        return Block(whole, is_small)

    def _give_back(self) -> None:
        for is_small, blocks in self._free.items():
            whole = [one for one in blocks if one[2].before is None and one[2].after is None]
            self.reserved_bytes -= sum(size for size, _, _ in whole)
            gone = {number for _, number, _ in whole}
            self._free[is_small] = [one for one in blocks if one[1] not in gone]

    def _join(self, block: Block) -> None:
        after, before = block.after, block.before
        if after is not None and after.is_free:
            self._remove(after)
            block.size, block.after = block.size + after.size, after.after
            if after.after is not None:
                after.after.before = block
        if before is not None and before.is_free:
            self._remove(before)
            before.size, before.after = before.size + block.size, block.after
            if block.after is not None:
                block.after.before = before
            block = before
        self._keep(block)

    def _keep(self, block: Block) -> None:
        self._count += 1
        block.number, block.is_free = self._count, True
        insort(self._free[block.is_small], (block.size, block.number, block))

    def _remove(self, block: Block) -> None:
        blocks = self._free[block.is_small]
        blocks.pop(bisect_left(blocks, (block.size, block.number), key=lambda one: one[:2]))
