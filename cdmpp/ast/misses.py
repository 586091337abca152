"""What one store and its loads ask of the memory beyond: misses of caches, of their sets, of the page buffer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdmpp.ast.access import LINE_BYTES, Access, Nest, Reach, reach
from cdmpp.ast.layout import CACHE_KIB, CROWDED_KIB, PAGE_ENTRIES
from cdmpp.ast.loop_nest import Loop

SETS = 64
"""Of a first-level cache with lines of 64 bytes: six bits of the address, below those that paging changes."""
PAGE_BYTES = 4096
_ALL = (1 << SETS) - 1


@dataclass(frozen=True)
class Misses:
    """LRU estimates from footprints; zeros for GPUs, but for the footprint."""

    bytes: list[float]
    """Bytes that reach beyond a cache of each of ``CACHE_KIB``, which may keep any line anywhere."""
    crowded_bytes: list[float]
    """The same for each of ``CROWDED_KIB``, where a line belongs to one of 64 sets: rows a power of two apart share
    a few sets, and the rest of the cache is of no use to them."""
    pages: list[float]
    """Translations that reach beyond each of ``PAGE_ENTRIES``."""
    footprint_bytes: float

    @property
    def in_order(self) -> list[float]:
        """As the last columns of leaf and kernel vectors."""
        return [*self.crowded_bytes, *self.pages]


def misses_of(nest: Nest, accesses: list[Access]) -> Misses:
    """Of the accesses of one store."""
    loops = nest.loops
    starts = range(1 if nest.gpu else len(loops) + 1)
    lines = [[reach(access, loops, first, LINE_BYTES) for access in accesses] for first in starts]
    sizes = [[r.units * LINE_BYTES for r in level] for level in lines]
    if nest.gpu:
        return Misses([0.0] * len(CACHE_KIB), [0.0] * len(CROWDED_KIB), [0.0] * len(PAGE_ENTRIES), sum(sizes[0]))
    crowded = [[r.units * LINE_BYTES * SETS / sets_used(r) for r in level] for level in lines]
    pages = [[reach(access, loops, first, PAGE_BYTES).units for access in accesses] for first in starts]
    beyond = _beyond(loops, accesses)
    return Misses(
        [beyond(sizes, sizes, kib * 1024.0) for kib in CACHE_KIB],
        [beyond(crowded, sizes, kib * 1024.0) for kib in CROWDED_KIB],
        [beyond(pages, pages, float(entries)) for entries in PAGE_ENTRIES],
        sum(sizes[0]),
    )


def sets_used(lines: Reach) -> int:
    """How many of the 64 sets the lines of an access lie in, its buffer starting at the first."""
    width = int(min(SETS, -(-lines.run_bytes // LINE_BYTES)))
    used = (1 << width) - 1
    for stride, extent in lines.jumps:
        piece = used
        # Steps of whole lines repeat their sets after 64, others after 4096 bytes at the latest.
        steps = min(extent, SETS if stride % LINE_BYTES == 0 else SETS * LINE_BYTES)
        for step in range(1, steps):
            if used == _ALL:
                return SETS
            used |= _rotated(piece, int(step * stride // LINE_BYTES) % SETS)
    return used.bit_count()


def _rotated(sets: int, by: int) -> int:
    return ((sets << by) | (sets >> (SETS - by))) & _ALL


def _beyond(
    loops: list[Loop], accesses: list[Access]
) -> Callable[[list[list[float]], list[list[float]], float], float]:
    def beyond(needed: list[list[float]], moved: list[list[float]], capacity: float) -> float:
        """What is moved in all where the loops from the first level on whose needs fit find their data kept."""
        fit = next((j for j, level in enumerate(needed) if sum(level) <= capacity), len(loops))
        total = 0.0
        for access, amount in zip(accesses, moved[fit], strict=True):
            outer = fit
            while outer > 0 and not access.depends[outer - 1]:
                outer -= 1
            repeats = 1.0
            for i in range(outer):
                repeats *= loops[i].extent
            total += amount * repeats
        return total

    return beyond
