"""State of one warp: what its registers, predicates and stack hold, as far as that does not depend on data.

What was loaded, or computed in floats, is *unknown*, and so is all that comes of it; but of indices and flags something
is assumed (``sass_rows``).
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np

from cdmpp.errors import DataError
from cdmpp.machine_code.gpu.sass import SassKernel
from cdmpp.machine_code.gpu.sass_fields import (
    FIELDS,
    INVERTED,
    MAGNITUDE,
    NEGATED,
    PREDICATES,
    REGISTERS,
    SPECIALS,
    TRUE,
    UNIFORM,
    UNIFORM_PREDICATES,
    UNIFORM_ZERO,
    ZERO,
    Source,
)

LANES = 32
LOW = np.uint64(0xFFFFFFFF)
POINTERS, POINTERS_APART = 0x7F << 40, 30
"""Where the arguments of a kernel point to: far from each other, aligned."""
_OLDER = dict.fromkeys((75, 80, 86, 87, 89), (0x160, 0x28))
_ABI = {**_OLDER, 90: (0x210, 0x28), **dict.fromkeys((100, 103, 120, 121), (0x380, 0x37C))}
Row: Any = namedtuple("Row", FIELDS)  # type: ignore[misc]  # noqa: PYI024 - fields are those of sass_fields
"""A row of ``rows_of`` by the names of its fields."""
Values = tuple[np.ndarray, np.ndarray]
"""(32,) of each lane, and (32,) bool: whether it is known."""


def abi_of(arch: int) -> tuple[int, int]:
    """Offsets of the arguments and of the stack's size in constant bank 0. ``DataError``: not known of ``sm_arch``."""
    if arch not in _ABI:
        raise DataError(f"machine code of sm_{arch} is not known; known are {', '.join(f'sm_{one}' for one in _ABI)}")
    return _ABI[arch]


class Launch(NamedTuple):
    """Blocks of the grid and threads of a block, by dimension x, y, z."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int = 0
    """Shared memory of a block that is given at the launch."""

    @property
    def blocks(self) -> int:
        """Of the grid."""
        return int(np.prod(self.grid))

    @property
    def threads(self) -> int:
        """Of a block."""
        return int(np.prod(self.block))

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-self.threads // LANES)


class WarpState:
    """Registers are (32,) uint64 below 2**32 each; a uniform register holds the same for all lanes."""

    def __init__(self, kernel: SassKernel, launch: Launch, block: int, warp: int, literals: bytes) -> None:
        self.stack_bytes, self.literals, self.launch = kernel.stack_bytes, literals, launch
        self.arguments_at, self.stack_at = abi_of(kernel.arch)
        self.register = np.zeros((REGISTERS, LANES), np.uint64)
        self.known = np.ones((REGISTERS, LANES), bool)
        self.predicate = np.zeros((PREDICATES, LANES), bool)
        self.predicate[TRUE] = True
        self.predicate_known = np.ones((PREDICATES, LANES), bool)
        self.stack = np.zeros((kernel.stack_bytes // 4 + 1, LANES), np.uint64)
        self.stack_known = np.ones(self.stack.shape, bool)
        thread = warp * LANES + np.arange(LANES)
        x, y, _ = launch.block
        across, up, _ = launch.grid
        self.special = [
            *(thread % x, thread // x % y, thread // (x * y)),
            *(np.full(LANES, value) for value in (block % across, block // across % up, block // (across * up))),
            np.arange(LANES),
            np.zeros(LANES, np.int64),
        ]
        assert len(self.special) == len(SPECIALS)
        self.alive = thread < launch.threads
        self.touched: set[int] = set()
        """Sectors that were read."""

    def read_predicate(self, place: int, negated: int) -> Values:
        """One of the predicates."""
        return self.predicate[place] ^ bool(negated), self.predicate_known[place]

    def plain(self, row: Any, i: int, further: int = 0) -> Values:
        """Operand ``i``, or its register or constant ``further`` on, without flags."""
        kind, value = row[_KINDS[i]], row[_KINDS[i] + 1]
        everywhere = np.ones(LANES, bool)
        if kind == Source.REGISTER:
            if value in (ZERO, UNIFORM_ZERO):
                return np.zeros(LANES, np.uint64), everywhere
            return self.register[value + further], self.known[value + further]
        if kind == Source.CONSTANT:
            number, known = self._constant(value + 4 * further)
            return np.full(LANES, number, np.uint64), everywhere & known
        return np.full(LANES, 0 if further else value & 0xFFFFFFFF, np.uint64), everywhere

    def source(self, row: Any, i: int) -> Values:
        """Operand ``i`` with its flags."""
        value, known = self.plain(row, i)
        flags = flags_of(row, i)
        if flags & MAGNITUDE:
            value = np.abs(signed(value)).astype(np.uint64)
        if flags & NEGATED:
            value = (~value + np.uint64(1)) & LOW
        if flags & INVERTED:
            value = ~value & LOW
        return value, known

    def wide_source(self, row: Any, i: int) -> Values:
        """64 bits: the two registers or constants of operand ``i``; an immediate keeps its sign."""
        low, known = self.plain(row, i)
        if row[_KINDS[i]] == Source.IMMEDIATE:
            value = signed(low).astype(np.uint64)
        else:
            high, also = self.plain(row, i, 1)
            value, known = low | high << np.uint64(32), known & also
        return (~value + np.uint64(1) if flags_of(row, i) & NEGATED else value), known

    def write(
        self, row: Any, low: np.ndarray, high: np.ndarray, known: np.ndarray, active: np.ndarray, sure: np.ndarray
    ) -> None:
        """Into the destination, for the lanes ``active``; those that are not ``sure`` to be become unknown."""
        if row.to in (ZERO, UNIFORM_ZERO):
            return
        lanes = active
        if row.to >= UNIFORM:  # one value for all lanes: that of the first which takes part
            first = int(np.argmax(active))
            low, high, known = (np.full(LANES, values[first]) for values in (low, high, known & sure))
            lanes = sure = np.ones(LANES, bool)
        for k in range(row.to_count):
            self.register[row.to + k] = np.where(lanes, high if k else low, self.register[row.to + k])
            self.known[row.to + k] = np.where(lanes, known & sure, self.known[row.to + k])

    def write_predicate(
        self, to: int, value: np.ndarray, known: np.ndarray, active: np.ndarray, sure: np.ndarray
    ) -> None:
        """The same of a predicate."""
        if to == TRUE:
            return
        if to >= UNIFORM_PREDICATES:
            first = int(np.argmax(active))
            value, known = np.full(LANES, value[first]), np.full(LANES, known[first] & sure[first])
            active = sure = np.ones(LANES, bool)
        self.predicate[to] = np.where(active, value, self.predicate[to])
        self.predicate_known[to] = np.where(active, known & sure, self.predicate_known[to])

    def _constant(self, value: int) -> tuple[int, bool]:
        bank, offset = value >> 16, value & 0xFFFF
        if bank == 2 and offset + 4 <= len(self.literals):
            return int.from_bytes(self.literals[offset : offset + 4], "little"), True
        if bank:
            return 0, False
        if offset >= self.arguments_at:
            number, high = divmod(offset - self.arguments_at, 8)
            pointer = POINTERS + (number << POINTERS_APART)
            return (pointer >> 32 if high else pointer) & 0xFFFFFFFF, True
        if offset == self.stack_at:
            return self.stack_bytes, True
        if offset in (0, 4, 8):
            return self.launch.block[offset // 4], True
        if offset in (12, 16, 20):
            return self.launch.grid[offset // 4 - 3], True
        return 0, True  # descriptors of memory: no address depends on their value


_KINDS = tuple(FIELDS.index(f"source{i}_kind") for i in range(3))


def flags_of(row: Any, i: int) -> int:
    """Flags of operand ``i``."""
    flags: int = row[_KINDS[i] + 2]
    return flags


def signed(value: np.ndarray) -> np.ndarray:
    """int64 of the lower 32 bits."""
    return value.astype(np.uint32).view(np.int32).astype(np.int64)
