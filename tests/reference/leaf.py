"""One store -> its computation vector (CDMPP section 4.1, widened by what decides latency on real hardware)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from cdmpp.ast.leaf_features import ACCESS, CONTEXT, LOOP, MEMORY, N_LOADS, N_LOOPS, OPS
from cdmpp.features import stored
from tests.reference.access import Access, Nest, measure, read_access
from tests.reference.arithmetic import Arithmetic, nonzero_fraction
from tests.reference.expression import evaluate, free_variables, has_load, is_constant, kind_of
from tests.reference.loop_nest import Kind, Leaf, Loop, Scope, Tag
from tests.reference.misses import misses_of
from tests.reference.points import Points

AUTO_LANES = 16
"""float32 lanes of the widest CPU vectors here."""
SHORT_REGION_TRIPS = 32
"""Loop nests up to this many trips are unrolled by nvcc and LLVM without being asked."""


@dataclass(frozen=True)
class LeafFacts:
    """Everything measured on one store. ``facts["iterations"]`` and the like are quantities by their feature names."""

    leaf: Leaf
    nest: Nest
    counts: dict[str, float]
    """Operations of one iteration, by the names of ``OPS``."""
    store: Access
    loads: list[Access]
    """Distinct loads without the accumulator, heaviest first."""
    context: dict[str, float]
    """By the names of ``CONTEXT``."""
    misses: dict[str, float]
    """By the names of ``MEMORY``."""

    def __getitem__(self, name: str) -> float:
        return self.context[name]

    @property
    def work(self) -> float:
        """Iterations that really compute."""
        return self["iterations"] * self["active_fraction"] * self["fold_fraction"]

    def vector(self) -> list[float]:
        """LEAF_WIDTH numbers in the order of ``LEAF_NAMES``."""
        numbers = stored(OPS, {name: amount * self.work for name, amount in self.counts.items()})
        numbers += stored(CONTEXT, self.context)
        for access in (self.store, *self.loads[:N_LOADS]):
            numbers += stored(ACCESS, access.quantities)
        numbers += [0.0] * len(ACCESS) * (N_LOADS - len(self.loads))
        loops = self.leaf.loops
        shown = [i for i in reversed(range(len(loops))) if loops[i].tag == Tag.NONE and loops[i].extent > 1][:N_LOOPS]
        for i in shown:
            strides = [access.strides[i] * access.element_bytes for access in (self.store, *self.loads)] + [0.0, 0.0]
            quantities = {
                "extent": loops[i].extent,
                "reduction_flag": not self.store.depends[i],
                "unrolled_flag": loops[i].unrolled,
                "vector_flag": loops[i].kind == Kind.VECTORIZED,
                "store_stride_bytes": strides[0],
                "load0_stride_bytes": strides[1],
                "load1_stride_bytes": strides[2],
            }
            numbers += stored(LOOP, quantities)
        numbers += [0.0] * len(LOOP) * (N_LOOPS - len(shown))
        return numbers + stored(MEMORY, self.misses)


def leaf_facts(leaf: Leaf, gpu: bool) -> LeafFacts:
    """Measure one store of a program for a GPU or a CPU."""
    loops, points = leaf.loops, Points(leaf.loops)
    nest = _nest(loops, points, gpu)
    active = _holds(points, [guard for guard in leaf.guards if not has_load(guard[0])])
    arithmetic = Arithmetic(leaf.store, loops)
    store = read_access(leaf.store.buffer, leaf.store.indices, points, loops)
    measure(store, nest, active)
    loads, update, indirect = _loads(arithmetic, nest, store, active)
    counts, constant = arithmetic.counts, is_constant(leaf.store.value)
    trips = _trips(leaf, nest, store, loads, update, constant)
    lanes, iterations = trips["vector_lanes"], trips["iterations"]
    context: dict[str, float] = {
        **trips,
        "depth": len(loops),
        "loops": sum(loop.extent > 1 for loop in loops),
        "unroll_limit": leaf.unroll_limit,
        "explicit_unroll_flag": leaf.explicit_unroll,
        "pipeline_stages": max((loop.stages for loop in loops), default=1),
        "guards": len(leaf.guards),
        "active_fraction": float(np.mean(active[points.random])),
        "constant_store_flag": constant,
        "update_flag": update,
        "copy_flag": _is_copy(leaf.store.value, arithmetic),
        "indirect_flag": indirect,
        "fold_fraction": nonzero_fraction(arithmetic.factors, loops, points),
        "flops_per_iteration": counts["fma"] + arithmetic.float_operations,
        "int_ops_per_iteration": counts["int"] + 4 * counts["intdiv"] + counts["compare"] + counts["bool"],
        "loads_per_iteration": len(loads),
        "vector_iterations": iterations / max(lanes, trips["auto_lanes"]),
        "scalar_flag": lanes <= 1 and trips["auto_lanes"] <= 1,
        "sync_flag": store.scope == Scope.SHARED,
        "odd_lanes_flag": int(lanes) & (int(lanes) - 1) != 0,  # LLVM takes such vectors apart
    }
    for access in (store, *loads):
        requested = iterations * access.element_bytes
        access.quantities.update(requested_bytes=requested, reuse=requested / access["unique_bytes"])
    store.quantities["written_before_flag"] = update
    return LeafFacts(leaf, nest, counts, store, loads, context, misses_of(nest, [store, *loads]))


def _nest(loops: list[Loop], points: Points, gpu: bool) -> Nest:
    region, trips = len(loops), 1
    for i in range(len(loops) - 1, -1, -1):
        loop = loops[i]
        trips *= loop.extent
        short = loop.unrolled or loop.extent == 1 or (trips <= SHORT_REGION_TRIPS and loop.kind != Kind.PARALLEL)
        if loop.tag != Tag.NONE or not short or (loop.branches and not loop.unrolled):
            break
        region = i
    serial = [i for i, loop in enumerate(loops) if loop.tag == Tag.NONE]
    refill = max((i for i in serial if loops[i].branches and not loops[i].unrolled), default=-1)
    vector = max((i for i, loop in enumerate(loops) if loop.kind == Kind.VECTORIZED and loop.extent > 1), default=-1)
    stays = [i for i in serial if loops[i].kind != Kind.VECTORIZED and loops[i].extent > 1 and not loops[i].unrolled]
    inner = max((i for i in stays if i < region), default=max(stays, default=-1))
    return Nest(loops, points, region, refill, vector, inner, gpu)


def _holds(points: Points, conditions: Iterable[tuple[Any, bool]]) -> np.ndarray:
    """(n_points,) bool."""
    holds = np.ones(points.count, bool)
    for condition, positive in conditions:
        holds &= (evaluate(condition, points.env, points.count) != 0) == positive
    return holds


def _loads(arithmetic: Arithmetic, nest: Nest, store: Access, active: np.ndarray) -> tuple[list[Access], bool, bool]:
    """Distinct loads, heaviest first; whether the store reads its own element; whether an index is loaded."""
    points = nest.points
    loads: list[Access] = []
    update, indirect = False, store.indirect
    for buffer, indices, guards in arithmetic.loads:
        load = read_access(buffer, indices, points, nest.loops)
        indirect = indirect or load.indirect
        same = [o for o in (store, *loads) if load.buffer == o.buffer and np.array_equal(load.offsets, o.offsets)]
        if same:
            update = update or same[0] is store
            continue
        measure(load, nest, active)
        load.quantities["guarded_fraction"] = float(np.mean(_holds(points, guards)[points.random]))
        loads.append(load)
    return sorted(loads, key=lambda a: (-a["moved_bytes_region"], -a["unique_bytes"])), update, indirect


def _is_copy(value: Any, arithmetic: Arithmetic) -> bool:
    while kind_of(value) == "Cast":
        value = value.value
    if kind_of(value) == "TensorLoad":
        return True
    chosen = kind_of(value) == "Call" and arithmetic.counts["select"] == 1 and len(arithmetic.loads) == 1
    return chosen and arithmetic.float_operations == 0


def _trips(
    leaf: Leaf, nest: Nest, store: Access, loads: list[Access], update: bool, constant: bool
) -> dict[str, float]:
    """Iteration counts and vector shape, by the names of ``CONTEXT``."""
    loops = nest.loops
    guarding = free_variables(*(condition for condition, _ in leaf.guards))
    touched = [any(access.depends[i] for access in (store, *loads)) for i in range(len(loops))]
    # Every trip of a loop that no access mentions computes the same again: the compiler does it once.
    repeated = {
        i
        for i, loop in enumerate(loops)
        if loop.tag == Tag.NONE and not touched[i] and loop.handle not in guarding and not constant
        if loads and not any(load.buffer in loop.written for load in loads)
        if not update or store.buffer in loop.started
    }
    # TVM does not replicate a statement that its virtual thread does not touch.
    real = [i for i, loop in enumerate(loops) if (loop.tag != Tag.VTHREAD or touched[i]) and i not in repeated]
    serial = [i for i in real if loops[i].tag not in (Tag.BLOCK, Tag.THREAD)]
    region = [i for i in serial if i >= nest.region]

    def trips(indices: Iterable[int]) -> float:
        return float(math.prod(loops[i].extent for i in indices))

    lanes = float(loops[nest.vector].extent) if nest.vector >= 0 else float(leaf.lanes)
    inwards = [i for i, loop in enumerate(loops) if loop.kind != Kind.VECTORIZED and loop.extent != 1]
    innermost_sums = takewhile(lambda i: loops[i].tag == Tag.NONE and not store.depends[i], reversed(inwards))
    tile = trips(i for i in region if store.depends[i])
    spatial = nest.inner >= 0 and store.depends[nest.inner]
    return {
        "iterations": trips(real) * leaf.lanes,
        "blocks": trips(i for i in real if loops[i].tag == Tag.BLOCK),
        "threads": trips(i for i in real if loops[i].tag == Tag.THREAD),
        "vthreads": trips(i for i in serial if loops[i].tag == Tag.VTHREAD),
        "serial_trips": trips(serial),
        "parallel_extent": trips(i for i in serial if loops[i].kind == Kind.PARALLEL),
        "vector_lanes": lanes,
        "unrolled_trips": trips(i for i in serial if loops[i].unrolled and loops[i].kind != Kind.VECTORIZED),
        "region_trips": trips(region),
        "reduction_trips": trips(i for i in serial if not store.depends[i]),
        "inner_reduction_trips": trips(innermost_sums),
        "accumulator_tile": tile,
        "refill_trips": trips(i for i in serial if i <= nest.refill and loops[i].tag == Tag.NONE),
        "chain_trips": trips(serial) / max(1.0, tile) if update and not spatial else 0.0,
        "redundant_trips": trips(repeated),
        "auto_lanes": _auto_lanes(nest, store, loads) if lanes <= 1 else 1.0,
    }


def _auto_lanes(nest: Nest, store: Access, loads: list[Access]) -> float:
    """Lanes of the compiler's own vectorisers: a loop, unrolled or innermost of the others, walks memory in order."""
    if nest.gpu:
        return 1.0
    for i in [*range(len(nest.loops) - 1, nest.region - 1, -1), nest.inner]:
        if i < 0 or nest.loops[i].extent <= 1 or not store.depends[i] or store.strides[i] != 1:
            continue
        if all(load.strides[i] == 1 or not load.depends[i] for load in loads):
            return float(min(nest.loops[i].extent, AUTO_LANES))
    return 1.0
