"""One store -> what decides its cost (CDMPP section 4.1, widened by what decides latency on real hardware)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.ast.access import Access, Nest, finish, loop_is_serial, read_access
from cdmpp.ast.arithmetic import Arithmetic, count, nonzero_fraction
from cdmpp.ast.expression import evaluate, free_variables, has_load, is_constant, kind_of
from cdmpp.ast.loop_nest import (
    BLOCK_TAG,
    NO_TAG,
    PARALLEL,
    THREAD_TAG,
    VECTORIZED,
    VTHREAD_TAG,
    Leaf,
    Loop,
)
from cdmpp.ast.misses import Misses, misses_of
from cdmpp.ast.points import Points

AUTO_LANES = 16
"""float32 lanes of the widest CPU vectors here."""
SHORT_REGION_TRIPS = 32
"""Loop nests up to this many trips are unrolled by nvcc and LLVM without being asked."""


def slog(x: float) -> float:
    return math.copysign(math.log2(1.0 + abs(x)), x)


@dataclass
class LeafFacts:
    """Everything measured on one store; the leaf vector and the kernel vector are both read from it."""

    leaf: Leaf
    nest: Nest
    arithmetic: Arithmetic
    store: Access
    loads: list[Access]
    """Distinct loads without the accumulator, heaviest first."""
    update: bool
    constant: bool
    copy: bool
    indirect: bool
    active: float
    fold: float
    iterations: float
    blocks: float
    threads: float
    vthreads: float
    serial_trips: float
    parallel_extent: float
    lanes: float
    unrolled_trips: float
    region_trips: float
    reduction_trips: float
    inner_reduction_trips: float
    accumulator_tile: float
    refill_trips: float
    chain_trips: float
    redundant_trips: float
    auto_lanes: float
    scalar: bool
    misses: Misses

    @property
    def work(self) -> float:
        """Iterations that really compute."""
        return self.iterations * self.active * self.fold

    @property
    def odd_lanes(self) -> bool:
        """A vector length that is no power of two: LLVM takes such vectors apart."""
        return int(self.lanes) & (int(self.lanes) - 1) != 0

    @property
    def flops_per_iteration(self) -> float:
        c = self.arithmetic.counts
        return 2 * c["fma"] + c["fadd"] + c["fmul"] + c["fdiv"] + c["fcompare"] + c["special"]


def leaf_facts(leaf: Leaf, gpu: bool) -> LeafFacts:
    loops = leaf.loops
    points = Points(loops)
    nest = _nest(leaf, points, gpu)
    active = _active(leaf, points)
    arithmetic = count(leaf.store, loops)
    store = read_access(leaf.store.buffer, leaf.store.indices, points, loops)
    finish(store, nest, active)
    loads: list[Access] = []
    update = False
    indirect = store.indirect
    for buffer, indices, guards in arithmetic.loads:
        load = read_access(buffer, indices, points, loops)
        indirect = indirect or load.indirect
        if load.buffer == store.buffer and np.array_equal(load.offsets, store.offsets):
            update = True
            continue
        if any(load.buffer == other.buffer and np.array_equal(load.offsets, other.offsets) for other in loads):
            continue
        finish(load, nest, active)
        if guards:
            holds = np.ones(points.count, bool)
            for condition, positive in guards:
                holds &= (evaluate(condition, points.env, points.count) != 0) == positive
            load.guarded_fraction = float(np.mean(holds[points.random]))
        loads.append(load)
    order = sorted(range(len(loads)), key=lambda i: (-loads[i].moved_region, -loads[i].unique_bytes, i))
    loads = [loads[i] for i in order]
    value = leaf.store.value
    constant = is_constant(value)
    inner_value = value
    while kind_of(inner_value) == "Cast":
        inner_value = inner_value.value
    copy = kind_of(inner_value) == "TensorLoad" or (
        kind_of(inner_value) == "Call"
        and arithmetic.counts["select"] == 1
        and len(arithmetic.loads) == 1
        and sum(arithmetic.counts[n] for n in ("fma", "fadd", "fmul", "fdiv", "fcompare", "special")) == 0
    )
    return LeafFacts(
        leaf=leaf,
        nest=nest,
        arithmetic=arithmetic,
        store=store,
        loads=loads,
        update=update,
        constant=constant,
        copy=copy,
        indirect=indirect,
        active=float(np.mean(active[points.random])),
        fold=nonzero_fraction(arithmetic.factors, loops, points),
        **_trips(leaf, nest, store, loads, update, constant),
        misses=misses_of(nest, [store, *loads]),
    )


def _nest(leaf: Leaf, points: Points, gpu: bool) -> Nest:
    loops = leaf.loops
    region, trips = len(loops), 1
    for i in range(len(loops) - 1, -1, -1):
        loop = loops[i]
        if loop.tag != NO_TAG:
            break
        trips *= loop.extent
        if not (loop.unrolled or loop.extent == 1 or (trips <= SHORT_REGION_TRIPS and loop.kind != PARALLEL)):
            break
        if loop.branches and not loop.unrolled:
            break
        region = i
    refill = max(
        (i for i, loop in enumerate(loops) if loop.branches and loop.tag == NO_TAG and not loop.unrolled), default=-1
    )
    vector = max((i for i, loop in enumerate(loops) if loop.kind == VECTORIZED and loop.extent > 1), default=-1)
    stays = [i for i, loop in enumerate(loops) if loop_is_serial(loop) and loop.extent > 1 and not loop.unrolled]
    inner = max((i for i in stays if i < region), default=max(stays, default=-1))
    return Nest(loops, points, region, refill, vector, inner, gpu)


def _active(leaf: Leaf, points: Points) -> np.ndarray:
    active = np.ones(points.count, bool)
    for condition, positive in leaf.guards:
        if not has_load(condition):
            active &= (evaluate(condition, points.env, points.count) != 0) == positive
    return active


def _trips(leaf: Leaf, nest: Nest, store: Access, loads: list[Access], update: bool, constant: bool) -> dict[str, Any]:
    """Iteration counts and vector shape, by the names of ``LeafFacts``."""
    loops = nest.loops
    touched = [any(a.depends[i] for a in [store, *loads]) for i in range(len(loops))]
    guarding = _guard_variables(leaf)

    def repeated(i: int) -> bool:
        loop = loops[i]
        free = loop.tag == NO_TAG and not touched[i] and loop.handle not in guarding and not constant
        return free and _repeats(loop, store, loads, update)

    # TVM does not replicate a statement that its virtual thread does not touch.
    real = [i for i, loop in enumerate(loops) if (loop.tag != VTHREAD_TAG or touched[i]) and not repeated(i)]
    serial = [i for i in real if loops[i].tag not in (BLOCK_TAG, THREAD_TAG)]
    region = [i for i in serial if i >= nest.region]

    def trips(indices: Iterable[int]) -> float:
        return float(math.prod(loops[i].extent for i in indices))

    lanes = float(loops[nest.vector].extent) if nest.vector >= 0 else float(leaf.lanes)
    inner_reduction = 1.0
    for i in range(len(loops) - 1, -1, -1):
        if loops[i].kind == VECTORIZED or loops[i].extent == 1:
            continue
        if not loop_is_serial(loops[i]) or store.depends[i]:
            break
        inner_reduction *= loops[i].extent
    tile = trips(i for i in region if store.depends[i])
    auto = _auto_lanes(nest, store, loads) if lanes <= 1 else 1.0
    spatial = nest.inner >= 0 and store.depends[nest.inner]
    chain = trips(serial) / max(1.0, tile) if update and not spatial else 0.0
    return {
        "iterations": trips(real) * leaf.lanes,
        "blocks": trips(i for i in real if loops[i].tag == BLOCK_TAG),
        "threads": trips(i for i in real if loops[i].tag == THREAD_TAG),
        "vthreads": trips(i for i in serial if loops[i].tag == VTHREAD_TAG),
        "serial_trips": trips(serial),
        "parallel_extent": trips(i for i in serial if loops[i].kind == PARALLEL),
        "lanes": lanes,
        "unrolled_trips": trips(i for i in serial if loops[i].unrolled and loops[i].kind != VECTORIZED),
        "region_trips": trips(region),
        "reduction_trips": trips(i for i in serial if not store.depends[i]),
        "inner_reduction_trips": inner_reduction,
        "accumulator_tile": tile,
        "refill_trips": trips(i for i in serial if i <= nest.refill and loops[i].tag == NO_TAG),
        "chain_trips": chain,
        "redundant_trips": trips(i for i in range(len(loops)) if repeated(i)),
        "auto_lanes": auto,
        "scalar": lanes <= 1 and auto <= 1,
    }


def _guard_variables(leaf: Leaf) -> set[int]:
    found: set[int] = set()
    for condition, _ in leaf.guards:
        free_variables(condition, found)
    return found


def _repeats(loop: Loop, store: Access, loads: list[Access], update: bool) -> bool:
    """True where every trip of a loop that no access mentions computes the same again: the compiler does it once."""
    if not loads or any(load.buffer in loop.written for load in loads):
        return False
    return store.buffer in loop.started if update else True


def _auto_lanes(nest: Nest, store: Access, loads: list[Access]) -> float:
    """Lanes that the compiler's own vectorisers find: in the innermost loop that stays a loop, or among the copies of
    an unrolled body, one loop walks memory in order."""
    if nest.gpu:
        return 1.0
    for i in [*range(len(nest.loops) - 1, nest.region - 1, -1), nest.inner]:
        if i < 0 or nest.loops[i].extent <= 1 or not store.depends[i] or store.strides[i] != 1:
            continue
        if all(load.strides[i] == 1 or not load.depends[i] for load in loads):
            return float(min(nest.loops[i].extent, AUTO_LANES))
    return 1.0
