"""All stores of one kernel -> its summary vector: launch shape, work per thread, traffic, on-chip use."""

from __future__ import annotations

import math

from cdmpp.ast.kernel_features import KERNEL_FEATURES
from cdmpp.features import stored
from tests.reference.access import LINE_BYTES, Access
from tests.reference.leaf import LeafFacts
from tests.reference.loop_nest import Allocation, Kernel, Scope, Tag
from tests.reference.points import WARP

_Pairs = list[tuple[LeafFacts, Access]]


def kernel_vector(kernel: Kernel, facts: list[LeafFacts], outside: list[Allocation], gpu: bool) -> list[float]:
    """KERNEL_WIDTH numbers in the order of ``KERNEL_NAMES``; ``outside``: allocations around all kernels."""
    launch = _launch(kernel, facts, outside, gpu)
    operations = _operations(facts, launch["blocks"] * launch["block_threads"] if gpu else 1.0)
    misses = {name: sum(f.misses[name] for f in facts) for name in facts[0].misses}
    return stored(KERNEL_FEATURES, {**launch, **operations, **_work(kernel, facts), **_memory(facts), **misses})


def _launch(kernel: Kernel, facts: list[LeafFacts], outside: list[Allocation], gpu: bool) -> dict[str, float]:
    local = [a for a in kernel.allocations if a.scope == Scope.LOCAL]
    axes = [loop for f in facts for loop in f.leaf.loops if loop.tag == Tag.THREAD]
    threads = float(math.prod(max([1, *(loop.extent for loop in axes if loop.axis == i)]) for i in range(3)))
    return {
        "gpu_flag": gpu,
        "blocks": max(f["blocks"] for f in facts),
        "block_threads": threads,
        "warps_per_block": float(-(-threads // WARP)),
        "vthreads": max(f["vthreads"] for f in facts),
        "shared_bytes": sum(a.bytes for a in kernel.allocations if a.scope == Scope.SHARED),
        "local_bytes_per_thread": sum(a.bytes for a in local),
        "register_elements": sum(a.elements for a in local),
        "allocated_bytes": sum(a.bytes for a in [*kernel.allocations, *outside] if a.scope == Scope.GLOBAL),
        "pipeline_stages": kernel.stages,
        "unroll_limit": kernel.unroll_limit,
        "code_steps": kernel.code_steps,
        "cross_thread_reductions": kernel.cross_thread_reductions,
        "parallel_extent": max(f["parallel_extent"] for f in facts),
    }


def _operations(facts: list[LeafFacts], threads: float) -> dict[str, float]:
    total = {name: sum(f.counts[name] * f.work for f in facts) for name in facts[0].counts}
    each = {name: amount / threads for name, amount in total.items()}
    return {
        "flops": sum(f.work * f["flops_per_iteration"] for f in facts),
        "fma_per_thread": each["fma"],
        "fp_per_thread": sum(each[name] for name in ("fma", "fadd", "fmul", "fdiv", "fcompare")),
        "special_per_thread": each["special"],
        "int_per_thread": each["int"] + 4 * each["intdiv"],
        "select_per_thread": each["select"],
        "branch_per_thread": sum(f["guards"] * f["iterations"] for f in facts) / threads,
        "special_iterations": total["special"],
        "intdiv_iterations": total["intdiv"],
    }


def _work(kernel: Kernel, facts: list[LeafFacts]) -> dict[str, float]:
    def weight(f: LeafFacts) -> float:
        return f.work * max(1.0, f["flops_per_iteration"])

    heaviest = max(facts, key=weight)
    fma = heaviest.counts["fma"] * heaviest["serial_trips"]
    shared_loads = sum(a["trips_ideal"] for a in heaviest.loads if a.scope == Scope.SHARED)
    inside = heaviest.leaf.loops[heaviest.nest.refill + 1 :]
    return {
        "leaves": len(facts),
        "max_region_trips": max(f["region_trips"] for f in facts),
        "min_active_fraction": min(f["active_fraction"] for f in facts),
        "fma_per_shared_load": fma / shared_loads if shared_loads else 0.0,
        "inner_body_trips": math.prod(loop.extent for loop in inside if loop.tag == Tag.NONE),
        "heaviest_leaf_share": weight(heaviest) / sum(weight(f) for f in facts),
        "iterations": sum(f["iterations"] for f in facts),
        "vector_iterations": sum(f["vector_iterations"] for f in facts if not f["scalar_flag"]),
        "scalar_iterations": sum(f["iterations"] for f in facts if f["scalar_flag"]),
        "gather_iterations": sum(f["iterations"] * _gathers(f) for f in facts),
        "odd_vector_iterations": sum(f["iterations"] for f in facts if f["odd_lanes_flag"]),
        "chain_iterations": sum(f["chain_trips"] for f in facts),
    }


def _memory(facts: list[LeafFacts]) -> dict[str, float]:
    stores = [(f, f.store) for f in facts]
    loads = [(f, a) for f in facts for a in f.loads]
    # An accumulator in shared or global memory is read as often as it is written.
    loads += [(f, f.store) for f in facts if f["update_flag"] and f.store.scope != Scope.LOCAL]
    shared_loads, global_loads = _of(loads, Scope.SHARED), _of(loads, Scope.GLOBAL)
    shared_stores, global_stores = _of(stores, Scope.SHARED), _of(stores, Scope.GLOBAL)
    return {
        "shared_loads_per_thread": _total(shared_loads, "trips_ideal"),
        "shared_loads_region_per_thread": _total(shared_loads, "trips_region"),
        "shared_load_wavefronts_per_warp": _total(shared_loads, "trips_ideal", "bank_wavefronts"),
        "shared_load_wavefronts_region_per_warp": _total(shared_loads, "trips_region", "bank_wavefronts"),
        "shared_stores_per_thread": _total(shared_stores, "trips_ideal"),
        "shared_store_wavefronts_per_warp": _total(shared_stores, "trips_ideal", "bank_wavefronts"),
        "global_loads_per_thread": _total(global_loads, "trips_ideal"),
        "global_loads_region_per_thread": _total(global_loads, "trips_region"),
        "global_load_sectors_per_warp": _total(global_loads, "trips_ideal", "sectors_per_warp"),
        "global_load_sectors_region_per_warp": _total(global_loads, "trips_region", "sectors_per_warp"),
        "global_load_use_share": _use(global_loads),
        "global_stores_per_thread": _total(global_stores, "trips_ideal"),
        "global_store_sectors_per_warp": _total(global_stores, "trips_ideal", "sectors_per_warp"),
        "global_store_use_share": _use(global_stores),
        "global_read_bytes": _unique(global_loads),
        "global_write_bytes": _unique(global_stores),
        "block_read_bytes": sum(a["block_unique_bytes"] for _, a in global_loads),
        "refill_rounds": max((f["refill_trips"] for f, _ in shared_stores), default=0.0),
        "local_memory_trips": _local_memory_trips(facts),
        "load_instructions": _instructions(loads),
        "store_instructions": _instructions(stores),
    }


def _of(pairs: _Pairs, scope: int) -> _Pairs:
    return [(f, a) for f, a in pairs if a.scope == scope]


def _total(pairs: _Pairs, trips: str, weight: str = "present_flag") -> float:
    """Over all threads and trips in which the stores run."""
    return sum(a[trips] * a[weight] * f["active_fraction"] for f, a in pairs)


def _use(pairs: _Pairs) -> float:
    """Mean share of each fetched sector that is used, weighted by bytes moved."""
    moved = sum(a["moved_bytes_ideal"] for _, a in pairs)
    return sum(a["moved_bytes_ideal"] * a["sector_use_share"] for _, a in pairs) / moved if moved else 0.0


def _unique(pairs: _Pairs) -> float:
    per_buffer: dict[int, float] = {}
    for _, a in pairs:
        per_buffer[a.buffer] = max(per_buffer.get(a.buffer, 0.0), a["unique_bytes"])
    return sum(per_buffer.values())


def _instructions(pairs: _Pairs) -> float:
    return sum(a["trips_region"] * -(-a["access_bytes"] // LINE_BYTES) for _, a in pairs)


def _local_memory_trips(facts: list[LeafFacts]) -> float:
    """Of thread-local buffers indexed by a loop that stays a loop: the compiler keeps these in memory."""
    pairs = [(f, a) for f in facts for a in (f.store, *f.loads)]
    in_memory = {
        a.buffer
        for f, a in pairs
        if a.scope == Scope.LOCAL
        for i, loop in enumerate(f.leaf.loops[: f.nest.region])
        if a.depends[i] and loop.extent > 1 and loop.tag == Tag.NONE
    }
    twice = [2.0 if f["update_flag"] and a is f.store else 1.0 for f, a in pairs]
    return sum(a["trips_region"] * times for (_, a), times in zip(pairs, twice, strict=True) if a.buffer in in_memory)


def _gathers(f: LeafFacts) -> float:
    """Accesses per iteration that a vector loop must split into scalars."""
    vector = f.nest.vector
    return float(sum(a.depends[vector] and a.strides[vector] > 1 for a in (f.store, *f.loads))) if vector >= 0 else 0.0
