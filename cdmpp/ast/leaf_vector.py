"""Facts of one store -> its computation vector, in the order of ``layout.LEAF_NAMES``."""

from __future__ import annotations

import numpy as np

from cdmpp.ast.access import LINE_BYTES, Access, Nest
from cdmpp.ast.layout import LEAF_WIDTH, N_LOADS, N_LOOPS, OP_NAMES
from cdmpp.ast.leaf import LeafFacts, slog
from cdmpp.ast.loop_nest import GLOBAL, LOCAL, NO_TAG, SHARED, VECTORIZED


def leaf_vector(f: LeafFacts) -> np.ndarray:
    """(LEAF_WIDTH,) float32 in the order of ``layout.LEAF_NAMES``."""
    counts, leaf, nest = f.arithmetic.counts, f.leaf, f.nest
    work = f.work
    out: list[float] = [slog(counts[name] * work) for name in OP_NAMES]
    int_ops = counts["int"] + 4 * counts["intdiv"] + counts["compare"] + counts["bool"]
    out += [
        slog(f.iterations),
        slog(f.blocks),
        slog(f.threads),
        slog(f.vthreads),
        slog(f.serial_trips),
        slog(f.parallel_extent),
        slog(f.lanes),
        slog(f.unrolled_trips),
        slog(f.region_trips),
        slog(f.reduction_trips),
        slog(f.inner_reduction_trips),
        slog(f.accumulator_tile),
        slog(len(leaf.loops)),
        slog(sum(loop.extent > 1 for loop in leaf.loops)),
        slog(leaf.unroll_limit),
        float(leaf.explicit_unroll),
        slog(max((loop.stages for loop in leaf.loops), default=1)),
        slog(len(leaf.guards)),
        f.active,
        float(f.constant),
        float(f.update),
        float(f.copy),
        float(f.indirect),
        f.fold,
        slog(f.refill_trips),
        slog(f.flops_per_iteration),
        slog(int_ops),
        slog(len(f.loads)),
        slog(f.iterations / max(f.lanes, f.auto_lanes)),
        float(f.scalar),
        slog(f.chain_trips),
        float(f.store.scope == SHARED),
        slog(f.redundant_trips),
        slog(f.auto_lanes),
        float(f.odd_lanes),
    ]
    out += _access_numbers(f.store, nest, f.update, f.iterations)
    for i in range(N_LOADS):
        if i < len(f.loads):
            out += _access_numbers(f.loads[i], nest, False, f.iterations)
        else:
            out += [0.0] * len(_access_numbers(f.store, nest, False, f.iterations))
    shown = [i for i in range(len(leaf.loops) - 1, -1, -1) if leaf.loops[i].tag == NO_TAG and leaf.loops[i].extent > 1]
    for k in range(N_LOOPS):
        if k >= len(shown):
            out += [0.0] * 7
            continue
        i = shown[k]
        loop = leaf.loops[i]
        out += [
            slog(loop.extent),
            float(not f.store.depends[i]),
            float(loop.unrolled),
            float(loop.kind == VECTORIZED),
            slog(f.store.strides[i] * f.store.element_bytes),
            slog(f.loads[0].strides[i] * f.loads[0].element_bytes) if f.loads else 0.0,
            slog(f.loads[1].strides[i] * f.loads[1].element_bytes) if len(f.loads) > 1 else 0.0,
        ]
    out += [slog(m) for m in [*f.misses.bytes, f.misses.footprint_bytes, *f.misses.in_order]]
    vector = np.asarray(out, np.float32)
    assert vector.shape == (LEAF_WIDTH,)
    return vector


def _access_numbers(a: Access, nest: Nest, read_too: bool, iterations: float) -> list[float]:
    vector, inner = nest.vector, nest.inner
    vector_stride = a.strides[vector] * a.element_bytes if vector >= 0 else 0.0
    inner_stride = a.strides[inner] * a.element_bytes if inner >= 0 else 0.0
    requested = iterations * a.element_bytes
    return [
        1.0,
        float(a.scope == GLOBAL),
        float(a.scope == SHARED),
        float(a.scope == LOCAL),
        float(read_too),
        slog(a.element_bytes),
        slog(a.buffer_bytes),
        slog(a.unique_bytes),
        slog(requested),
        slog(requested / a.unique_bytes),
        slog(a.trips_ideal),
        slog(a.trips_region),
        slog(a.sectors),
        a.use_share,
        slog(a.lanes_distinct),
        slog(a.wavefronts),
        slog(a.access_bytes),
        slog(a.moved_ideal),
        slog(a.moved_region),
        slog(vector_stride),
        float(vector >= 0 and a.strides[vector] == 1),
        slog(inner_stride),
        float(inner >= 0 and a.depends[inner]),
        slog(a.lines),
        min(1.0, a.unique_bytes / (a.lines * LINE_BYTES)),
        slog(a.block_unique_bytes),
        a.guarded_fraction,
    ]
