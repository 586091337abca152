"""Instructions that shift, choose and vote on bits and predicates, for all lanes at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.counts.gpu.grid import Grid, NotKnownError, Write, is_truth, put, put_truth, truth, word
from benchmarks.counts.gpu.operations import LOW, Run, only, parts, plain, signed, simple
from cdmpp.machine_code.gpu.sass import SassLine


def _shift(line: SassLine) -> Run:
    given = only(line, "L", "R", "U32", "S32", "U64", "S64", "HI", "W")
    to, _, sources, _ = parts(line)
    high, double = "HI" in given, bool({"U64", "S64"} & given)
    most = 63 if double else 31

    def what(low: np.ndarray, count: np.ndarray, upper: np.ndarray) -> np.ndarray:
        count = (count & most if "W" in given else np.minimum(count, most + 1)).astype(np.uint64)
        full = upper.astype(np.uint64) << np.uint64(32) | low
        if "L" in given:
            moved = np.where(count < 64, full << np.minimum(count, np.uint64(63)), np.uint64(0))
        elif high and not double:
            if "S32" in given:
                return (signed(upper) >> np.minimum(count, np.uint64(31)).astype(np.int64)).astype(np.uint32)
            return (upper.astype(np.uint64) >> count).astype(np.uint32)
        elif {"S32", "S64"} & given:
            moved = (full.view(np.int64) >> np.minimum(count, np.uint64(63)).astype(np.int64)).view(np.uint64)
        else:
            moved = np.where(count < 64, full >> np.minimum(count, np.uint64(63)), np.uint64(0))
        return (moved >> np.uint64(32) if high else moved & LOW).astype(np.uint32)

    return simple(to, [word(text) for text in sources], what)


def _logic(line: SassLine) -> Run:
    only(line, "LUT")
    to, written, sources, _ = parts(line)
    table = int(sources[3], 16)
    reads, write, outs = [word(text) for text in sources[:3]], put(to), [put_truth(text) for text in written]

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        a, b, c = (read(grid, warps) for read in reads)
        found = np.zeros((1, 1), np.uint32)
        for j in range(8):
            if table >> j & 1:
                found = found | ((a if j & 4 else ~a) & (b if j & 2 else ~b) & (c if j & 1 else ~c))
        write(grid, warps, mask, found)
        for out in outs:
            out(grid, warps, mask, found != 0)

    return run


def _predicate_logic(line: SassLine) -> Run:
    only(line, "LUT")
    first, second, a, b, c, *tables = line.operands
    writes: list[tuple[Write, int]] = [
        (put_truth(to), int(table, 16)) for to, table in zip((first, second), tables, strict=True)
    ]
    reads = [truth(text) for text in (a, b, c)]

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        x, y, z = (read(grid, warps).astype(np.int64) for read in reads)
        place = 4 * x + 2 * y + z
        for write, table in writes:
            write(grid, warps, mask, (table >> place & 1).astype(bool))

    return run


def _permute(line: SassLine) -> Run:
    only(line)
    to, _, sources, _ = parts(line)

    def what(a: np.ndarray, chosen: np.ndarray, c: np.ndarray) -> np.ndarray:
        both, found = c.astype(np.uint64) << np.uint64(32) | a, np.zeros((1, 1), np.uint32)
        for j in range(4):
            code = chosen >> np.uint32(4 * j) & np.uint32(15)
            byte = (both >> (8 * (code & 7)).astype(np.uint64)).astype(np.uint32) & np.uint32(255)
            byte = np.where(code & 8, np.where(byte & 128, np.uint32(255), np.uint32(0)), byte)
            found = found | byte << np.uint32(8 * j)
        return found

    return simple(to, [word(text) for text in sources], what)


def _extend(given: frozenset[str], value: np.ndarray, count: np.ndarray) -> np.ndarray:
    bits = (count & 31).astype(np.uint32)
    mask = (np.uint32(1) << bits) - np.uint32(1)
    negative = (bits > 0) & (value >> (np.maximum(bits, 1) - 1).astype(np.uint32) & 1 > 0) & ("U32" not in given)
    return np.where(negative, value | ~mask, value & mask)


def _predicates_to_register(line: SassLine) -> Run:
    only(line)
    to, source, kept, mask_text = line.operands
    table = int(mask_text, 16)
    keep, write = word(kept), put(to)
    if source != "PR":
        raise NotKnownError(source)

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        bits = sum(grid.predicates[j, warps].astype(np.uint32) << np.uint32(j) for j in range(7))
        write(grid, warps, mask, (keep(grid, warps) & np.uint32(~table & 0xFFFFFFFF)) | (bits & np.uint32(table)))

    return run


def _register_to_predicates(line: SassLine) -> Run:
    to, source, mask_text = line.operands
    table, read = int(mask_text, 16), word(source)
    if to != "PR" or line.modifiers:
        raise NotKnownError(line.name)
    writes = [(j, put_truth(f"P{j}")) for j in range(7) if table >> j & 1]

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        bits = read(grid, warps)
        for j, write in writes:
            write(grid, warps, mask, (bits >> np.uint32(j) & 1).astype(bool))

    return run


def _vote(line: SassLine) -> Run:
    """Of the lanes that are here; the register gets one bit of each."""
    how = only(line, "ANY", "ALL")
    texts = list(line.operands)
    register = next((text for text in texts if not is_truth(text)), "RZ")
    out, read = [text for text in texts if is_truth(text)]
    write, flag, vote = put(register), put_truth(out), truth(read)

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        yes = mask & vote(grid, warps)
        bits = (yes.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1, keepdims=True).astype(np.uint32)
        every = (yes == mask).all(1, keepdims=True)
        write(grid, warps, mask, bits)
        flag(grid, warps, mask, every if "ALL" in how else bits != 0)

    return run


BITS: dict[str, Callable[[SassLine], Run]] = {
    "SHF": _shift,
    "LOP3": _logic,
    "PLOP3": _predicate_logic,
    "PRMT": _permute,
    "SGXT": plain(_extend, "U32"),
    "POPC": plain(lambda given, x: np.bitwise_count(x).astype(np.uint32)),
    "P2R": _predicates_to_register,
    "R2P": _register_to_predicates,
    **dict.fromkeys(("VOTE", "VOTEU"), _vote),
}
"""Opcode, without the U of uniform ones -> what makes it run."""
