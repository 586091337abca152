"""What one load or store does to memory: strides, footprints, cache lines, warp sectors, bank conflicts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tests.reference.expression import evaluate, free_variables, has_load
from tests.reference.loop_nest import Kind, Loop, Scope, Tag, element_bytes, integer, scope_of
from tests.reference.points import Points

LINE_BYTES = 64
SECTOR_BYTES = 32
BANKS = 32
WIDEST_ACCESS_BYTES = 16


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Access:
    """One load or store. ``access["unique_bytes"]`` and the like are quantities by their names in ``ACCESS``."""

    buffer: int
    """Handle."""
    offsets: np.ndarray
    """Element offset at every point, (n_points,) int64."""
    depends: list[bool]
    """Per loop: the index mentions its variable."""
    strides: list[int]
    """Elements moved by one step of each loop (average step where the first is zero)."""
    spans: list[int]
    """Elements from the first to the last trip of each loop."""
    scope: Scope
    element_bytes: float
    buffer_bytes: float
    indirect: bool
    quantities: dict[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        return self.quantities[name]


def read_access(buffer: Any, indices: Any, points: Points, loops: list[Loop]) -> Access:
    """The access to ``buffer`` at ``indices``, without quantities."""
    offsets = np.zeros(points.count, np.int64)
    variables, size = free_variables(*indices), 1
    for extent, index in zip(reversed(list(buffer.shape)), reversed(list(indices)), strict=True):
        offsets = offsets + evaluate(index, points.env, points.count).astype(np.int64) * size
        size *= integer(extent, f"a dimension of buffer {buffer.name}")
    n = len(loops)
    strides, spans = (np.abs(offsets[at : at + n] - offsets[0]).tolist() for at in (1, 1 + n))
    for i, loop in enumerate(loops):
        if strides[i] == 0 and spans[i] > 0:
            strides[i] = max(1, spans[i] // (loop.extent - 1))
    width = element_bytes(buffer)
    return Access(
        buffer=buffer.__chandle__(),
        offsets=offsets,
        depends=[loop.handle in variables for loop in loops],
        strides=strides,
        spans=spans,
        scope=scope_of(buffer),
        element_bytes=width,
        buffer_bytes=size * width,
        indirect=any(has_load(index) for index in indices),
    )


class Reach(NamedTuple):
    """Memory that some loops touch, in units such as lines or pages."""

    units: float
    run_bytes: float
    """Length of each contiguous piece, gaps below a unit included."""
    jumps: list[tuple[float, int]]
    """(bytes, extent) of the loops that lead from piece to piece."""


def reach(access: Access, loops: list[Loop], chosen: Iterable[int], unit_bytes: int) -> Reach:
    """What the loops at the indices ``chosen`` touch, each unit counted once."""
    run, count, product, jumps = access.element_bytes, 1.0, 1.0, []
    terms = [(access.strides[i] * access.element_bytes, i) for i in chosen if loops[i].extent > 1 and access.depends[i]]
    for stride, i in sorted(terms):
        extent = loops[i].extent
        product *= extent
        # A fused loop jumps (its end is not where its first step points): its steps never join into one run.
        if access.spans[i] == access.strides[i] * (extent - 1) and stride <= max(run, unit_bytes):
            run = stride * (extent - 1) + run
        else:
            count *= extent
            jumps.append((stride, extent))
    elements = product * -(-access.element_bytes // unit_bytes)
    units = min(count * -(-run // unit_bytes), elements, float(-(-access.buffer_bytes // unit_bytes)))
    return Reach(max(1.0, units), run, jumps)


def measure(access: Access, nest: Nest, active: np.ndarray) -> None:
    """Fill the quantities that need no iteration count. ``active`` (n_points,) bool: the store's guards hold."""
    loops, vector, inner = nest.loops, nest.vector, nest.inner
    requests, width = _requests(access, nest)
    ideal = region = requests
    for i, loop in enumerate(loops):
        if i == vector or loop.tag in (Tag.BLOCK, Tag.THREAD):
            continue
        if access.depends[i] or (i <= nest.refill and loop.tag != Tag.VTHREAD):
            ideal *= loop.extent
        if access.depends[i] or (i < nest.region and loop.tag != Tag.VTHREAD):
            region *= loop.extent
    distinct, sectors, share, wavefronts = _warp(access, nest.points, active, width) if nest.gpu else (0.0,) * 4
    moved_ideal, moved_region = ideal * width, region * width
    if nest.gpu:
        blocks, threads = (
            math.prod(loop.extent for loop in loops if loop.tag == tag) for tag in (Tag.BLOCK, Tag.THREAD)
        )
        warps = float(blocks * -(-threads // BANKS))
        by_scope = {Scope.GLOBAL: sectors * SECTOR_BYTES, Scope.SHARED: wavefronts * BANKS * 4}
        per_request = by_scope.get(access.scope, width * min(threads, BANKS))
        moved_ideal, moved_region = ideal * per_request * warps, region * per_request * warps
    everything = range(len(loops))
    unique, lines = (reach(access, loops, everything, unit_bytes).units for unit_bytes in (1, LINE_BYTES))
    in_block = [i for i in everything if loops[i].tag != Tag.BLOCK and (nest.gpu or loops[i].kind != Kind.PARALLEL)]
    access.quantities.update(
        present_flag=1.0,
        global_flag=access.scope == Scope.GLOBAL,
        shared_flag=access.scope == Scope.SHARED,
        local_flag=access.scope == Scope.LOCAL,
        written_before_flag=False,
        element_bytes=access.element_bytes,
        buffer_bytes=access.buffer_bytes,
        unique_bytes=unique,
        trips_ideal=ideal,
        trips_region=region,
        sectors_per_warp=sectors,
        sector_use_share=share,
        lanes_distinct=distinct,
        bank_wavefronts=wavefronts,
        access_bytes=width,
        moved_bytes_ideal=moved_ideal,
        moved_bytes_region=moved_region,
        vector_stride_bytes=access.strides[vector] * access.element_bytes if vector >= 0 else 0.0,
        vector_contiguous_flag=vector >= 0 and access.strides[vector] == 1,
        inner_stride_bytes=access.strides[inner] * access.element_bytes if inner >= 0 else 0.0,
        inner_dependent_flag=inner >= 0 and access.depends[inner],
        lines=lines,
        line_use_share=min(1.0, unique / (lines * LINE_BYTES)),
        block_unique_bytes=reach(access, loops, in_block, 1).units,
        guarded_fraction=1.0,
    )


def _requests(access: Access, nest: Nest) -> tuple[float, float]:
    """(instructions one vector iteration needs, bytes each moves)."""
    stride = access.strides[nest.vector] if nest.vector >= 0 and access.depends[nest.vector] else 0
    if stride == 0:
        return 1.0, access.element_bytes
    lanes = nest.loops[nest.vector].extent
    if stride != 1:
        return float(lanes), access.element_bytes
    total = lanes * access.element_bytes
    if not nest.gpu:
        return 1.0, total
    return float(max(1, -(-total // WIDEST_ACCESS_BYTES))), min(total, float(WIDEST_ACCESS_BYTES))


def _warp(access: Access, points: Points, active: np.ndarray, width: float) -> tuple[float, float, float, float]:
    """Distinct lanes, sectors, share of the sectors that is used and bank wavefronts of the first warp."""
    lanes = access.offsets[points.lanes]
    lanes = lanes[active[points.lanes]] if active[points.lanes].any() else lanes
    start = np.floor(lanes * access.element_bytes).astype(np.int64)
    first, last = start // SECTOR_BYTES, (start + int(max(1, width)) - 1) // SECTOR_BYTES
    sectors = np.union1d(first, last)
    distinct = len(np.unique(start))
    share = min(1.0, distinct * max(1.0, width) / (len(sectors) * SECTOR_BYTES))
    words = max(1, int(width) // 4)
    group = max(1, BANKS // words)
    wavefronts = 0
    for begin in range(0, len(start), group):
        used = np.unique(start[begin : begin + group, None] // 4 + np.arange(words))
        wavefronts += int(np.bincount(used % BANKS).max())
    return float(distinct), float(len(sectors)), share, float(wavefronts)
