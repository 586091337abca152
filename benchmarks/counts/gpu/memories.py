"""Global, shared and local memory of a grid, and what a warp's request to each of them touches."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.counts.gpu.grid import Grid, NotKnownError, Read, is_register, is_truth, put, register_at, word
from cdmpp.machine_code.gpu.launch import LANES
from cdmpp.machine_code.gpu.sass import SassLine

BASE = 0x7F0000000000
"""Global memory begins here."""
_ALIGNED, _BETWEEN = 256, 512
"""Buffers begin at multiples of these bytes, as the driver gives them, and lie so far apart at least."""
SYSTEM_BYTES = 1024
"""Of shared memory the system keeps these for itself from sm_90 on, before those of the kernel."""
SECTOR, WORD, BANKS = 32, 4, 32
_ADDRESS = re.compile(r"\[([^\[\]]*)\]$")
_TERM = re.compile(r"[+-]?[^+-]+")
_WIDTHS = {"128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}


class OutsideError(Exception):
    """An access outside the buffers, or one that is not aligned."""


class GlobalMemory:
    """Buffers in one array of bytes, apart from each other."""

    def __init__(self, buffers: Sequence[np.ndarray]) -> None:
        self.places: list[slice] = []
        at = _ALIGNED
        for buffer in buffers:
            self.places.append(slice(at, at + buffer.nbytes))
            at += -(-(buffer.nbytes + _BETWEEN) // _ALIGNED) * _ALIGNED
        self.bytes = np.zeros(at, np.uint8)
        self.own = np.zeros(at, bool)
        for place, buffer in zip(self.places, buffers, strict=True):
            self.bytes[place] = np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
            self.own[place] = True

    @property
    def addresses(self) -> list[int]:
        """Where the buffers begin."""
        return [BASE + place.start for place in self.places]

    def contents(self, number: int, like: np.ndarray) -> np.ndarray:
        """A buffer as it is now."""
        return self.bytes[self.places[number]].view(like.dtype).reshape(like.shape)


class Memories:
    """All that a grid reads and writes."""

    def __init__(self, grid: Grid, of_all: GlobalMemory, shared_bytes: int) -> None:
        self.of_all = of_all
        size = -(-(shared_bytes + SYSTEM_BYTES) // 16) * 16
        self.shared = np.zeros((grid.launch.blocks, size), np.uint8)
        self.local = np.zeros((grid.warps * LANES, -(-max(grid.stack_bytes, 16) // 16) * 16), np.uint8)

    def places(self, space: str, grid: Grid, warps: Any, address: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of a space, one after the other, and where addresses (warps, 32) lie in them."""
        if space == "G":
            return self.of_all.bytes, address - BASE
        if space == "S":
            table, row = self.shared, grid.block[warps][:, None]
        else:
            table, row = self.local, (np.arange(grid.warps)[warps] * LANES)[:, None] + np.arange(LANES)
        return table.reshape(-1), np.where(
            (address >= 0) & (address < table.shape[1]), address + row * table.shape[1], -1
        )


def moved_bytes(line: SassLine) -> int:
    """Bytes that a lane moves."""
    known = {"E", "CONSTANT", "CI", "SYS", "BYPASS", "LTC128B", "STRONG", "GPU", "EL", "EF", "LU", "NA", "32"}
    if other := set(line.modifiers) - known - set(_WIDTHS):
        raise NotKnownError(f"modifier {sorted(other)[0]}")
    return next((width for name, width in _WIDTHS.items() if name in line.modifiers), WORD)


def address_of(text: str, is_global: bool) -> Read:
    """The address that an operand in brackets means, as (warps, 32) of 64-bit numbers."""
    found = _ADDRESS.search(text)
    if found is None:
        raise NotKnownError(text)
    terms: list[Read] = []
    for part in _TERM.findall(found[1]):
        negative, name = part.startswith("-"), part.lstrip("+-").strip()
        if name.startswith("0x"):
            offset = np.full((1, 1), -int(name, 16) if negative else int(name, 16), np.int64)
            terms.append(lambda grid, warps, offset=offset: offset)  # type: ignore[misc]
            continue
        base, *notes = name.split(".")
        times = next((int(note[1:]) for note in notes if note.startswith("X")), 1)
        uniform, place = register_at(base)
        pair = "64" in notes or (uniform and is_global)
        if place < 0:
            continue
        low, high = word(base), word(base, 1)

        def term(grid: Grid, warps: Any, low: Read = low, high: Read = high, pair: bool = pair, n: int = times) -> Any:
            value = low(grid, warps).astype(np.int64) * n
            return value + (high(grid, warps).astype(np.int64) << 32) if pair else value

        terms.append(term)

    def address(grid: Grid, warps: Any) -> np.ndarray:
        total = np.zeros((len(grid.block[warps]), LANES), np.int64)
        for one in terms:
            total = total + one(grid, warps)
        return total if is_global else total & 0xFFFFFFFF

    return address


Access = Callable[[Grid, Memories, Any, np.ndarray], np.ndarray]
"""Moves what an instruction moves for some warps; returns what each warp's request takes of its memory."""


def access(line: SassLine) -> Access:
    """Loads and stores: the sectors of each request to global or local memory, the passes of one to shared memory."""
    space, is_load, width = line.opcode[-1], line.opcode.startswith("LD"), moved_bytes(line)
    if any(map(is_truth, line.operands)):
        raise NotKnownError("a predicate")
    place = next(i for i, text in enumerate(line.operands) if "[" in text)
    address = address_of(line.operands[place], space == "G")
    register = line.operands[0] if is_load else line.operands[place + 1]
    if not is_register(register):
        raise NotKnownError(register)
    count = max(1, width // WORD)
    writes = [put(register, k) for k in range(count)] if is_load else []
    reads = [word(register, k) for k in range(count)] if not is_load else []
    signs = "S8" in line.modifiers or "S16" in line.modifiers
    kind = np.dtype({1: "i1" if signs else "u1", 2: "i2" if signs else "u2"}.get(width, "u4"))

    def run(grid: Grid, memories: Memories, warps: Any, mask: np.ndarray) -> np.ndarray:
        there = address(grid, warps)
        flat, at = memories.places(space, grid, warps, there)
        _check(memories, space, flat, at[mask], width)
        view = flat.view(kind)
        index = np.where(mask, at, 0) // kind.itemsize
        for k, write in enumerate(writes):
            write(grid, warps, mask, view[index + k].astype(np.int64).astype(np.uint32))
        for k, read in enumerate(reads):
            values = np.broadcast_to(read(grid, warps), mask.shape)
            view[index[mask] + k] = values[mask].astype(kind)
        return passes(there, mask, width) if space == "S" else different(there, mask, width, SECTOR)

    return run


def copy(line: SassLine) -> Access:
    """``LDGSTS``: from global to shared memory, past the registers; the sectors that it reads."""
    width = moved_bytes(line)
    there, here = line.operands
    source, target = address_of(here, True), address_of(there, False)

    def run(grid: Grid, memories: Memories, warps: Any, mask: np.ndarray) -> np.ndarray:
        address = source(grid, warps)
        flat, at = memories.places("G", grid, warps, address)
        shared, to = memories.places("S", grid, warps, target(grid, warps))
        _check(memories, "G", flat, at[mask], width)
        _check(memories, "S", shared, to[mask], width)
        for k in range(width):
            shared[to[mask] + k] = flat[at[mask] + k]
        return different(address, mask, width, SECTOR)

    return run


def _check(memories: Memories, space: str, flat: np.ndarray, at: np.ndarray, width: int) -> None:
    inside = (at >= 0) & (at + width <= len(flat)) & (at % width == 0)
    if space == "G" and inside.all():
        inside = memories.of_all.own[at] & memories.of_all.own[at + width - 1]
    if not inside.all():
        raise OutsideError("an access outside the buffers, or not aligned")


def different(address: np.ndarray, mask: np.ndarray, width: int, size: int) -> np.ndarray:
    """(warps,) different pieces of ``size`` bytes that the lanes of each warp touch."""
    last = np.iinfo(np.int64).max
    pieces = np.sort(np.where(mask, address // size, last), axis=1)  # aligned accesses touch one each
    fresh = np.concatenate([np.ones((len(pieces), 1), bool), pieces[:, 1:] != pieces[:, :-1]], axis=1)
    return (fresh & (pieces != last)).sum(1)


def _most_of_a_bank(words: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(warps,) the most different words that one of the banks has to give."""
    last = np.iinfo(np.int64).max
    ordered = np.sort(np.where(mask, words, last), axis=1)
    fresh = np.concatenate([np.ones((len(ordered), 1), bool), ordered[:, 1:] != ordered[:, :-1]], axis=1)
    row, column = np.nonzero(fresh & (ordered != last))
    counts = np.zeros((len(words), BANKS), np.int64)
    np.add.at(counts, (row, ordered[row, column] % BANKS), 1)
    return counts.max(1)


def passes(address: np.ndarray, mask: np.ndarray, width: int) -> np.ndarray:
    """(warps,) passes through the banks of shared memory.

    Words of 32 bits are given to a warp at once; of 64 bits to half a warp, of 128 bits to a quarter; two such parts go
    together where each lane asks for the same as its neighbour, or each as the one but one, in both of them.
    """
    per_lane = max(1, width // WORD)
    words = (address // WORD)[:, :, None] + np.arange(per_lane)
    every = np.broadcast_to(mask[:, :, None], words.shape)

    def of(lanes: slice) -> np.ndarray:
        n = len(words)
        return _most_of_a_bank(words[:, lanes].reshape(n, -1), every[:, lanes].reshape(n, -1))

    if width <= WORD:
        return of(slice(0, LANES))
    size, total = LANES // per_lane, np.zeros(len(words), np.int64)
    for start in range(0, LANES, 2 * size):
        both = slice(start, start + 2 * size)
        alike = np.zeros(len(words), bool)
        for apart in (1, 2):
            other = np.arange(start, start + 2 * size) ^ apart
            same = (address[:, both] == address[:, other]) | ~mask[:, both] | ~mask[:, other]
            alike |= same.all(1)
        halves = of(slice(start, start + size)) + of(slice(start + size, start + 2 * size))
        total += np.where(alike, of(both), halves)
    return total
