"""What one load or store does to memory: strides, footprints, cache lines, warp sectors, bank conflicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.ast.expression import evaluate, free_variables, has_load
from cdmpp.ast.loop_nest import (
    BLOCK_TAG,
    GLOBAL,
    NO_TAG,
    PARALLEL,
    SHARED,
    THREAD_TAG,
    VECTORIZED,
    VTHREAD_TAG,
    Loop,
    element_bytes,
    integer,
    scope_of,
)
from cdmpp.ast.points import Points

LINE_BYTES = 64
SECTOR_BYTES = 32
BANKS = 32
WIDEST_ACCESS_BYTES = 16


@dataclass
class Nest:
    """The loops of one store with what every access of that store shares."""

    loops: list[Loop]
    points: Points
    region: int
    """Loops from this index inwards are unrolled or short: their bodies share registers."""
    refill: int
    """Index of the innermost loop whose body holds several statements; -1 if none."""
    vector: int
    """Index of the vectorised loop, -1 if none."""
    inner: int
    """Index of the innermost loop that stays a loop (not vectorised, unrolled, short or a thread), -1 if none."""
    gpu: bool


@dataclass
class Access:
    buffer: int
    offsets: np.ndarray
    """Element offset at every point, (n_points,) int64."""
    depends: list[bool]
    """Per loop: the index mentions its variable."""
    strides: list[int]
    """Elements moved by one step of each loop (average step where the first is zero)."""
    spans: list[int]
    scope: int
    element_bytes: float
    buffer_bytes: float
    indirect: bool
    guarded_fraction: float = 1.0
    sectors: float = 0.0
    use_share: float = 0.0
    lanes_distinct: float = 0.0
    wavefronts: float = 0.0
    access_bytes: float = 0.0
    trips_ideal: float = 1.0
    trips_region: float = 1.0
    moved_ideal: float = 0.0
    moved_region: float = 0.0
    unique_bytes: float = 0.0
    block_unique_bytes: float = 0.0
    lines: float = 0.0


def read_access(buffer: Any, indices: Any, points: Points, loops: list[Loop]) -> Access:
    offsets = np.zeros(points.count, np.int64)
    names: set[int] = set()
    size = 1
    for extent, index in zip(reversed(list(buffer.shape)), reversed(list(indices)), strict=True):
        offsets = offsets + evaluate(index, points.env, points.count).astype(np.int64) * size
        size *= integer(extent, f"a dimension of buffer {buffer.name}")
        free_variables(index, names)
    depends = [loop.handle in names for loop in loops]
    strides, spans = [], []
    for i, loop in enumerate(loops):
        span = abs(int(offsets[1 + points.n_loops + i] - offsets[0]))
        stride = abs(int(offsets[1 + i] - offsets[0]))
        if stride == 0 and span > 0:
            stride = max(1, span // (loop.extent - 1))
        strides.append(stride)
        spans.append(span)
    width = element_bytes(buffer)
    return Access(
        buffer.__chandle__(),
        offsets,
        depends,
        strides,
        spans,
        scope_of(buffer),
        width,
        size * width,
        any(has_load(index) for index in indices),
    )


@dataclass(frozen=True)
class Reach:
    """Memory that some loops touch, in units such as lines or pages."""

    units: float
    run_bytes: float
    """Length of each contiguous piece, gaps below a unit included."""
    jumps: list[tuple[float, int]]
    """(bytes, extent) of the loops that lead from piece to piece."""


def reach(access: Access, loops: list[Loop], first: int, unit_bytes: int) -> Reach:
    """What the loops from index ``first`` inwards touch, each unit counted once."""
    terms = _terms(access, loops, first, 0, False)
    run, count, product, jumps = access.element_bytes, 1.0, 1.0, []
    for stride, _, extent, straight in terms:
        product *= extent
        if straight and stride <= max(run, unit_bytes):
            run = stride * (extent - 1) + run
        else:
            count *= extent
            jumps.append((stride, extent))
    units = min(count * -(-run // unit_bytes), product, float(-(-access.buffer_bytes // unit_bytes)))
    return Reach(max(1.0, units), run, jumps)


def footprint(access: Access, loops: list[Loop], skip_tag: int, skip_parallel: bool) -> float:
    """Bytes that the loops touch, each once."""
    run, count, product = access.element_bytes, 1.0, 1.0
    for stride, _, extent, straight in _terms(access, loops, 0, skip_tag, skip_parallel):
        product *= extent
        if straight and stride <= run:
            run = stride * (extent - 1) + run
        else:
            count *= extent
    return min(count * run, product * access.element_bytes, access.buffer_bytes)


def _terms(
    access: Access, loops: list[Loop], first: int, skip_tag: int, skip_parallel: bool
) -> list[tuple[float, int, int, bool]]:
    """(stride in bytes, index, extent, straight) of the loops that the index mentions, by growing stride."""
    terms = []
    for i in range(first, len(loops)):
        loop = loops[i]
        if loop.extent <= 1 or not access.depends[i] or (skip_tag and loop.tag == skip_tag):
            continue
        if skip_parallel and loop.kind == PARALLEL:
            continue
        # A fused loop jumps (its end is not where its first step points): its steps never join into one run.
        straight = access.spans[i] == access.strides[i] * (loop.extent - 1)
        terms.append((access.strides[i] * access.element_bytes, i, loop.extent, straight))
    return sorted(terms)


def finish(access: Access, nest: Nest, active: np.ndarray) -> None:
    """Fill the physical quantities. ``active`` (n_points,) bool: where the store's guards hold."""
    loops, points = nest.loops, nest.points
    requests, width = _requests(access, nest)
    ideal = region = float(requests)
    warps_factor = 1.0
    threads = 1.0
    for i, loop in enumerate(loops):
        if i == nest.vector:
            continue
        if loop.tag in (BLOCK_TAG, THREAD_TAG):
            if loop.tag == BLOCK_TAG:
                warps_factor *= loop.extent
            else:
                threads *= loop.extent
            continue
        if access.depends[i] or (i <= nest.refill and loop.tag != VTHREAD_TAG):
            ideal *= loop.extent
        if access.depends[i] or (i < nest.region and loop.tag != VTHREAD_TAG):
            region *= loop.extent
    access.trips_ideal, access.trips_region, access.access_bytes = ideal, region, width
    if nest.gpu:
        _warp(access, points, active, width)
        warps = warps_factor * float(-(-threads // BANKS))
        per_request = {GLOBAL: access.sectors * SECTOR_BYTES, SHARED: access.wavefronts * BANKS * 4}.get(
            access.scope, width * min(threads, BANKS)
        )
        access.moved_ideal, access.moved_region = ideal * per_request * warps, region * per_request * warps
    else:
        access.moved_ideal, access.moved_region = ideal * width, region * width
    access.unique_bytes = footprint(access, loops, 0, False)
    access.lines = reach(access, loops, 0, LINE_BYTES).units
    access.block_unique_bytes = footprint(access, loops, BLOCK_TAG, not nest.gpu)


def _requests(access: Access, nest: Nest) -> tuple[float, float]:
    """(instructions one vector iteration needs, bytes each moves)."""
    if nest.vector < 0:
        return 1.0, access.element_bytes
    lanes, stride = nest.loops[nest.vector].extent, access.strides[nest.vector]
    if not access.depends[nest.vector] or stride == 0:
        return 1.0, access.element_bytes
    if stride != 1:
        return float(lanes), access.element_bytes
    total = lanes * access.element_bytes
    if not nest.gpu:
        return 1.0, total
    return float(max(1, -(-total // WIDEST_ACCESS_BYTES))), min(total, float(WIDEST_ACCESS_BYTES))


def _warp(access: Access, points: Points, active: np.ndarray, width: float) -> None:
    lanes = access.offsets[points.lanes][active[points.lanes]]
    if len(lanes) == 0:
        lanes = access.offsets[points.lanes]
    start = np.floor(lanes * access.element_bytes).astype(np.int64)
    end = start + int(max(1, width)) - 1
    distinct = np.unique(start)
    access.lanes_distinct = float(len(distinct))
    sectors: set[int] = set()
    for a, b in zip(start // SECTOR_BYTES, end // SECTOR_BYTES, strict=True):
        sectors.update(range(int(a), int(b) + 1))
    access.sectors = float(len(sectors))
    access.use_share = min(1.0, len(distinct) * max(1.0, width) / (len(sectors) * SECTOR_BYTES))
    words = max(1, int(width) // 4)
    group = max(1, BANKS // words)
    total = 0
    for first in range(0, len(start), group):
        used: set[int] = set()
        for byte in start[first : first + group]:
            used.update(range(int(byte) // 4, int(byte) // 4 + words))
        banks = [0] * BANKS
        for word in used:
            banks[word % BANKS] += 1
        total += max(banks)
    access.wavefronts = float(total)


def loop_is_serial(loop: Loop) -> bool:
    return loop.tag == NO_TAG and loop.kind != VECTORIZED
