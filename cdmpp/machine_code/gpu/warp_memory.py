"""What loads, stores and copies of one warp move. Readable twin of ``native/memory.h``."""

from __future__ import annotations

from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.machine_code.gpu.sass_fields import UNIFORM_ZERO, ZERO, Kind, Space
from cdmpp.machine_code.gpu.warp_state import LANES, LOW, Values, WarpState

SECTOR_BYTES = 32
LINE_SECTORS = 4
UNKNOWN_ADDRESS = "the address of instruction {at} depends on data"
LEAVES_STACK = "instruction {at} leaves the stack of {stack} bytes"
_BANKS = 32


def move(state: WarpState, row: Any, active: np.ndarray, sure: np.ndarray, at: int) -> tuple[int, int, int]:
    """Units, fresh and merged of an access by the lanes ``active``, see ``warp.TRACE``."""
    address, known = _address(state, row)
    if not known[active].all():
        raise DataError(UNKNOWN_ADDRESS.format(at=at))
    if row.space == Space.LOCAL:
        _move_local(state, row, address, active, sure, at)
        words = max(1, row.width // 4)  # a word of all lanes is a line
        return words * LINE_SECTORS, 0, words
    if row.kind == Kind.LOAD:
        assumed = np.full(LANES, row.option == 2, np.uint64)  # see ``sass_rows``
        state.write(row, assumed, np.zeros(LANES, np.uint64), np.full(LANES, row.option > 0), active, sure)
    if row.space == Space.SHARED:
        return passes(address, row.width, active), 0, _conflicts(address[active], row.width)
    last = address[active] + np.uint64(row.width - 1)
    sectors = {*(address[active] // SECTOR_BYTES).tolist(), *(last // SECTOR_BYTES).tolist()}
    lines = len({sector // LINE_SECTORS for sector in sectors})
    if row.kind == Kind.STORE:
        return len(sectors), len(sectors), lines
    fresh = len(sectors - state.touched)
    state.touched |= sectors
    return len(sectors), fresh, lines


def _address(state: WarpState, row: Any) -> Values:
    wide = row.space == Space.GLOBAL
    address, known = np.zeros(LANES, np.uint64), np.ones(LANES, bool)
    if row.base != ZERO:
        address, known = state.register[row.base] * np.uint64(row.base_scale), state.known[row.base]
        if row.base_wide and wide:
            address = address | state.register[row.base + 1] << np.uint64(32)
            known = known & state.known[row.base + 1]
    if row.uniform_base != UNIFORM_ZERO:
        address, known = address + state.register[row.uniform_base], known & state.known[row.uniform_base]
        if wide:
            address = address + (state.register[row.uniform_base + 1] << np.uint64(32))
            known = known & state.known[row.uniform_base + 1]
    address = address + np.int64(row.offset).astype(np.uint64)
    return (address if wide else address & LOW), known


def _move_local(state: WarpState, row: Any, address: np.ndarray, active: np.ndarray, sure: np.ndarray, at: int) -> None:
    words, lanes = (address // 4).astype(np.int64), np.flatnonzero(active)
    count, whole = max(1, row.width // 4), row.width >= 4
    if (words[active] + count > len(state.stack)).any():
        raise DataError(LEAVES_STACK.format(at=at, stack=state.stack_bytes))
    register = row.to if row.kind == Kind.LOAD else row.source0_value
    for k in range(count):
        there = words[lanes] + k, lanes
        if row.kind == Kind.STORE:
            value, known = np.zeros(LANES, np.uint64), np.ones(LANES, bool)
            if register != ZERO:
                value, known = state.register[register + k], state.known[register + k]
            state.stack[there] = value[lanes]
            state.stack_known[there] = known[lanes] & sure[lanes] & whole
        elif register != ZERO:
            state.register[register + k, lanes] = state.stack[there]
            state.known[register + k, lanes] = state.stack_known[there] & sure[lanes] & whole


def passes(address: np.ndarray, width: int, active: np.ndarray) -> int:
    """Passes of a shared access through the banks, by the bytes of a lane.

    Four are served at once, 8 in two halves of a warp, 16 in four quarters. Two of these are one where each lane asks
    for the same as its neighbour, or as the one after that.
    """
    if width <= 4:
        return _conflicts(address[active], width)
    size, total = (LANES if width == 8 else LANES // 2), 0
    for start in range(0, LANES, size):
        part = slice(start, start + size)
        parts = [part]
        if not (_alike(address[part], active[part], 1) or _alike(address[part], active[part], 2)):
            parts = [slice(start, start + size // 2), slice(start + size // 2, start + size)]
        total += sum(_conflicts(address[one][active[one]], width) for one in parts)
    return total


def _alike(address: np.ndarray, active: np.ndarray, apart: int) -> bool:
    other = np.arange(len(address)) ^ apart
    return not (active & active[other] & (address != address[other])).any()


def _conflicts(address: np.ndarray, width: int) -> int:
    """The most different words that one bank has to give."""
    words = np.unique((address[:, None] // 4 + np.arange(max(1, width // 4), dtype=np.uint64)).ravel())
    return int(np.bincount((words % _BANKS).astype(np.int64)).max()) if len(words) else 0
