"""All stores of one kernel -> its summary vector: launch shape, work per thread, traffic, on-chip use."""

from __future__ import annotations

import numpy as np

from cdmpp.ast.access import LINE_BYTES, Access
from cdmpp.ast.layout import KERNEL_WIDTH
from cdmpp.ast.leaf import LeafFacts, slog
from cdmpp.ast.loop_nest import GLOBAL, LOCAL, NO_TAG, SHARED, THREAD_TAG, Allocation, Kernel
from cdmpp.ast.points import WARP


def kernel_vector(kernel: Kernel, facts: list[LeafFacts], outside: list[Allocation], gpu: bool) -> np.ndarray:
    """(KERNEL_WIDTH,) float32 in the order of ``layout.KERNEL_NAMES``."""
    blocks = max(f.blocks for f in facts)
    threads = _block_threads(facts)
    all_threads = blocks * threads if gpu else 1.0
    shared = float(sum(a.bytes for a in kernel.allocations if a.scope == SHARED))
    local = float(sum(a.bytes for a in kernel.allocations if a.scope == LOCAL))
    registers = float(sum(a.elements for a in kernel.allocations if a.scope == LOCAL))
    allocated = float(sum(a.bytes for a in [*kernel.allocations, *outside] if a.scope == GLOBAL))

    def per_thread(name: str) -> float:
        return sum(f.arithmetic.counts[name] * f.work for f in facts) / all_threads

    fma = per_thread("fma")
    fp = sum(per_thread(n) for n in ("fma", "fadd", "fmul", "fdiv", "fcompare"))
    heaviest = max(facts, key=lambda f: f.work * max(1.0, f.flops_per_iteration))
    work = sum(f.work * max(1.0, f.flops_per_iteration) for f in facts)
    loads = [(f, a) for f in facts for a in f.loads]
    stores = [(f, f.store) for f in facts]
    # An accumulator in shared or global memory is read as often as it is written.
    loads += [(f, f.store) for f in facts if f.update and f.store.scope != LOCAL]
    s_loads, g_loads = _of(loads, SHARED), _of(loads, GLOBAL)
    s_stores, g_stores = _of(stores, SHARED), _of(stores, GLOBAL)

    def total(pairs: list[tuple[LeafFacts, Access]], region: bool, weight: str = "") -> float:
        out = 0.0
        for f, a in pairs:
            trips = a.trips_region if region else a.trips_ideal
            out += trips * (getattr(a, weight) if weight else 1.0) * _reach(f)
        return out

    in_memory = _indexed_dynamically(facts)
    dynamic = 0.0
    for f in facts:
        for a in [f.store, *f.loads]:
            if a.buffer in in_memory:
                dynamic += a.trips_region * (2.0 if f.update and a is f.store else 1.0)
    heavy_shared = sum(a.trips_ideal for a in heaviest.loads if a.scope == SHARED)
    heavy_fma = heaviest.arithmetic.counts["fma"] * heaviest.serial_trips
    inner_body = 1.0
    for i, loop in enumerate(heaviest.leaf.loops):
        if i > heaviest.nest.refill and loop.tag == NO_TAG:
            inner_body *= loop.extent
    out = [
        float(gpu),
        slog(blocks),
        slog(threads),
        slog(float(-(-threads // WARP))),
        slog(max(f.vthreads for f in facts)),
        slog(shared),
        slog(local),
        slog(kernel.stages),
        slog(kernel.unroll_limit),
        slog(len(facts)),
        slog(sum(f.work * f.flops_per_iteration for f in facts)),
        slog(fma),
        slog(fp),
        slog(per_thread("special")),
        slog(per_thread("int") + 4 * per_thread("intdiv")),
        slog(per_thread("select")),
        slog(sum(len(f.leaf.guards) * f.iterations for f in facts) / all_threads),
        slog(total(s_loads, False)),
        slog(total(s_loads, True)),
        slog(total(s_loads, False, "wavefronts")),
        slog(total(s_loads, True, "wavefronts")),
        slog(total(s_stores, False)),
        slog(total(s_stores, False, "wavefronts")),
        slog(total(g_loads, False)),
        slog(total(g_loads, True)),
        slog(total(g_loads, False, "sectors")),
        slog(total(g_loads, True, "sectors")),
        _use(g_loads),
        slog(total(g_stores, False)),
        slog(total(g_stores, False, "sectors")),
        _use(g_stores),
        slog(_unique(g_loads)),
        slog(_unique(g_stores)),
        slog(sum(a.block_unique_bytes for _, a in g_loads)),
        slog(max((f.refill_trips for f, a in s_stores), default=0.0)),
        slog(kernel.cross_thread_reductions),
        slog(kernel.code_steps),
        slog(max(f.region_trips for f in facts)),
        slog(registers),
        slog(dynamic),
        min(f.active for f in facts),
        slog(heavy_fma / heavy_shared if heavy_shared else 0.0),
        slog(inner_body),
        slog(max(f.parallel_extent for f in facts)),
        slog(sum(f.iterations for f in facts)),
        slog(sum(f.iterations / max(f.lanes, f.auto_lanes) for f in facts if not f.scalar)),
        slog(sum(f.iterations for f in facts if f.scalar)),
        slog(sum(f.iterations * _gathers(f) for f in facts)),
        slog(sum(f.iterations for f in facts if f.odd_lanes)),
        slog(sum(f.chain_trips for f in facts)),
        slog(sum(a.trips_region * -(-a.access_bytes // LINE_BYTES) for _, a in loads)),
        slog(sum(a.trips_region * -(-a.access_bytes // LINE_BYTES) for _, a in stores)),
        slog(allocated),
        slog(sum(f.arithmetic.counts["special"] * f.work for f in facts)),
        slog(sum(f.arithmetic.counts["intdiv"] * f.work for f in facts)),
        heaviest.work * max(1.0, heaviest.flops_per_iteration) / work,
        slog(sum(f.misses.footprint_bytes for f in facts)),
    ]
    out += [slog(sum(column)) for column in zip(*([*f.misses.bytes, *f.misses.in_order] for f in facts), strict=True)]
    vector = np.asarray(out, np.float32)
    assert vector.shape == (KERNEL_WIDTH,)
    return vector


def _block_threads(facts: list[LeafFacts]) -> float:
    extents = [1, 1, 1]
    for f in facts:
        for loop in f.leaf.loops:
            if loop.tag == THREAD_TAG:
                extents[loop.axis] = max(extents[loop.axis], loop.extent)
    return float(extents[0] * extents[1] * extents[2])


def _indexed_dynamically(facts: list[LeafFacts]) -> set[int]:
    """Thread-local buffers indexed by a loop that stays a loop: the compiler keeps these in memory, not registers."""
    return {
        a.buffer
        for f in facts
        for a in [f.store, *f.loads]
        if a.scope == LOCAL
        and any(
            a.depends[i] and f.leaf.loops[i].extent > 1 and f.leaf.loops[i].tag == NO_TAG for i in range(f.nest.region)
        )
    }


def _reach(f: LeafFacts) -> float:
    """Share of threads and trips in which a guarded store runs."""
    return f.active


def _of(pairs: list[tuple[LeafFacts, Access]], scope: int) -> list[tuple[LeafFacts, Access]]:
    return [(f, a) for f, a in pairs if a.scope == scope]


def _use(pairs: list[tuple[LeafFacts, Access]]) -> float:
    """Mean share of each fetched sector that is used, weighted by bytes moved."""
    moved = sum(a.moved_ideal for _, a in pairs)
    return sum(a.moved_ideal * a.use_share for _, a in pairs) / moved if moved else 0.0


def _unique(pairs: list[tuple[LeafFacts, Access]]) -> float:
    per_buffer: dict[int, float] = {}
    for _, a in pairs:
        per_buffer[a.buffer] = max(per_buffer.get(a.buffer, 0.0), a.unique_bytes)
    return sum(per_buffer.values())


def _gathers(f: LeafFacts) -> float:
    """Accesses per iteration that a vector loop must split into scalars."""
    vector = f.nest.vector
    if vector < 0:
        return 0.0
    return float(sum(a.depends[vector] and a.strides[vector] > 1 for a in [f.store, *f.loads]))
