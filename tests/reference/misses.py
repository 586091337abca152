"""What one store and its loads ask of the memory beyond: misses of caches, of their sets, of the TLB."""

from __future__ import annotations

import math

from cdmpp.ast.leaf_features import CACHE_KIB, CROWDED_KIB, MEMORY, PAGE_ENTRIES
from cdmpp.features import names
from tests.reference.access import LINE_BYTES, Access, Nest, Reach, reach
from tests.reference.loop_nest import Loop

SETS = 64
"""Of a first-level cache with lines of 64 bytes: six bits of the address, below those that paging changes."""
PAGE_BYTES = 4096
_ALL = (1 << SETS) - 1


def misses_of(nest: Nest, accesses: list[Access]) -> dict[str, float]:
    """LRU estimates from footprints, by the names of ``MEMORY``; zeros for GPUs, but for the footprint."""
    loops = nest.loops
    levels = [range(first, len(loops)) for first in range(1 if nest.gpu else len(loops) + 1)]
    lines = [[reach(access, loops, level, LINE_BYTES) for access in accesses] for level in levels]
    sizes = [[r.units * LINE_BYTES for r in level] for level in lines]
    misses = dict.fromkeys(names(MEMORY), 0.0) | {"footprint_bytes": sum(sizes[0])}
    if nest.gpu:
        return misses
    crowded = [[r.units * LINE_BYTES * SETS / sets_used(r) for r in level] for level in lines]
    pages = [[reach(access, loops, level, PAGE_BYTES).units for access in accesses] for level in levels]
    for kib in CACHE_KIB:
        misses[f"miss_bytes_{kib}kib"] = _beyond(loops, accesses, sizes, sizes, kib * 1024.0)
    for kib in CROWDED_KIB:
        misses[f"crowded_miss_bytes_{kib}kib"] = _beyond(loops, accesses, crowded, sizes, kib * 1024.0)
    for entries in PAGE_ENTRIES:
        misses[f"page_misses_{entries}"] = _beyond(loops, accesses, pages, pages, float(entries))
    return misses


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
            by = int(step * stride // LINE_BYTES) % SETS
            used |= ((piece << by) | (piece >> (SETS - by))) & _ALL
    return used.bit_count()


def _beyond(
    loops: list[Loop], accesses: list[Access], needed: list[list[float]], moved: list[list[float]], capacity: float
) -> float:
    """What is moved in all where the loops from the first level on whose needs fit find their data kept."""
    fit = next((j for j, level in enumerate(needed) if sum(level) <= capacity), len(loops))
    total = 0.0
    for access, amount in zip(accesses, moved[fit], strict=True):
        outer = max((i + 1 for i in range(fit) if access.depends[i]), default=0)
        total += amount * float(math.prod(loop.extent for loop in loops[:outer]))
    return total
