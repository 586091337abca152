"""What makes an instruction run, in parts that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.counts.gpu.grid import Grid, NotKnownError, Read, is_truth, put, word
from cdmpp.machine_code.gpu.sass import SassLine

LOW = np.uint64(0xFFFFFFFF)
Run = Callable[[Grid, Any, np.ndarray], None]
"""Carries an instruction out for some warps, on the lanes of a mask (warps, 32)."""


def only(line: SassLine, *names: str) -> frozenset[str]:
    """The modifiers of a line. ``NotKnownError``: one is none of ``names``."""
    if other := [one for one in line.modifiers if one not in names]:
        raise NotKnownError(f"modifier {other[0]}")
    return frozenset(line.modifiers)


def parts(line: SassLine) -> tuple[str, list[str], list[str], list[str]]:
    """The destination; predicates that are written, operands, and predicates that are read."""
    rest = list(line.operands)
    written: list[str] = []
    while is_truth(rest[0]):
        written.append(rest.pop(0))
    to = rest.pop(0)
    while rest and is_truth(rest[0]):
        written.append(rest.pop(0))
    return to, written, [text for text in rest if not is_truth(text)], [text for text in rest if is_truth(text)]


def simple(to: str, sources: Sequence[Read], what: Callable[..., Any]) -> Run:
    """One result of 32 bits."""
    write = put(to)

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        write(grid, warps, mask, what(*(read(grid, warps) for read in sources)))

    return run


def signed(bits: np.ndarray) -> np.ndarray:
    """The same bits as signed numbers of 64 bits."""
    return bits.view(np.int32).astype(np.int64) if bits.dtype == np.uint32 else bits.view(np.int64)


def plain(what: Callable[..., Any], *modifiers: str) -> Callable[[SassLine], Run]:
    def made(line: SassLine) -> Run:
        given = only(line, *modifiers)
        to, _, sources, _ = parts(line)
        return simple(to, [word(text) for text in sources], lambda *values: what(given, *values))

    return made
