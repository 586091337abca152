"""Names and order of the numbers in a compact AST; any change of meaning bumps ``EXTRACTOR_VERSION``.

Unless a name ends in ``_flag``, ``_fraction`` or ``_share`` the stored number is slog(x) = sign(x) * log2(1 + |x|)
of the quantity in the unit that the name carries.
"""

from __future__ import annotations

EXTRACTOR_VERSION = "5"

N_LOADS = 4
"""Loads described per store, heaviest first."""
N_LOOPS = 6
"""Innermost loops described per store, innermost first."""
CACHE_KIB = (16, 32, 256, 1024, 4096, 32768)
"""Capacities at which the miss curve is sampled."""
CROWDED_KIB = (16, 32, 48)
"""Sizes of a first-level cache for which lines that crowd into few of its sets are counted."""
PAGE_ENTRIES = (64, 1536)
"""Pages that the two levels of a CPU's translation buffer hold."""

OP_NAMES = ("fma", "fadd", "fmul", "fdiv", "fcompare", "special", "select", "cast", "int", "intdiv", "compare", "bool")

_OPS = tuple(f"ops_{name}" for name in OP_NAMES)

_CONTEXT = (
    "iterations",
    "blocks",
    "threads",
    "vthreads",
    "serial_trips",
    "parallel_extent",
    "vector_lanes",
    "unrolled_trips",
    "region_trips",
    "reduction_trips",
    "inner_reduction_trips",
    "accumulator_tile",
    "depth",
    "loops",
    "unroll_limit",
    "explicit_unroll_flag",
    "pipeline_stages",
    "guards",
    "active_fraction",
    "constant_store_flag",
    "update_flag",
    "copy_flag",
    "indirect_flag",
    "fold_fraction",
    "refill_trips",
    "flops_per_iteration",
    "int_ops_per_iteration",
    "loads_per_iteration",
    "vector_iterations",
    "scalar_flag",
    "chain_trips",
    "sync_flag",
    "redundant_trips",
    "auto_lanes",
    "odd_lanes_flag",
)

_ACCESS = (
    "present_flag",
    "global_flag",
    "shared_flag",
    "local_flag",
    "written_before_flag",
    "element_bytes",
    "buffer_bytes",
    "unique_bytes",
    "requested_bytes",
    "reuse",
    "trips_ideal",
    "trips_region",
    "sectors_per_warp",
    "sector_use_share",
    "lanes_distinct",
    "bank_wavefronts",
    "access_bytes",
    "moved_bytes_ideal",
    "moved_bytes_region",
    "vector_stride_bytes",
    "vector_contiguous_flag",
    "inner_stride_bytes",
    "inner_dependent_flag",
    "lines",
    "line_use_share",
    "block_unique_bytes",
    "guarded_fraction",
)

LOOP_NAMES = (
    "extent",
    "reduction_flag",
    "unrolled_flag",
    "vector_flag",
    "store_stride_bytes",
    "load0_stride_bytes",
    "load1_stride_bytes",
)

_MISSES = tuple(f"crowded_miss_bytes_{kib}kib" for kib in CROWDED_KIB) + tuple(
    f"page_misses_{entries}" for entries in PAGE_ENTRIES
)

LEAF_NAMES: tuple[str, ...] = (
    _OPS
    + _CONTEXT
    + tuple(f"store_{n}" for n in _ACCESS)
    + tuple(f"load{i}_{n}" for i in range(N_LOADS) for n in _ACCESS)
    + tuple(f"loop{i}_{n}" for i in range(N_LOOPS) for n in LOOP_NAMES)
    + tuple(f"miss_bytes_{kib}kib" for kib in CACHE_KIB)
    + ("footprint_bytes",)
    + _MISSES
)

KERNEL_NAMES: tuple[str, ...] = (
    (
        "gpu_flag",
        "blocks",
        "block_threads",
        "warps_per_block",
        "vthreads",
        "shared_bytes",
        "local_bytes_per_thread",
        "pipeline_stages",
        "unroll_limit",
        "leaves",
        "flops",
        "fma_per_thread",
        "fp_per_thread",
        "special_per_thread",
        "int_per_thread",
        "select_per_thread",
        "branch_per_thread",
        "shared_loads_per_thread",
        "shared_loads_region_per_thread",
        "shared_load_wavefronts_per_warp",
        "shared_load_wavefronts_region_per_warp",
        "shared_stores_per_thread",
        "shared_store_wavefronts_per_warp",
        "global_loads_per_thread",
        "global_loads_region_per_thread",
        "global_load_sectors_per_warp",
        "global_load_sectors_region_per_warp",
        "global_load_use_share",
        "global_stores_per_thread",
        "global_store_sectors_per_warp",
        "global_store_use_share",
        "global_read_bytes",
        "global_write_bytes",
        "block_read_bytes",
        "refill_rounds",
        "cross_thread_reductions",
        "code_steps",
        "max_region_trips",
        "register_elements",
        "local_memory_trips",
        "min_active_fraction",
        "fma_per_shared_load",
        "inner_body_trips",
        "parallel_extent",
        "iterations",
        "vector_iterations",
        "scalar_iterations",
        "gather_iterations",
        "odd_vector_iterations",
        "chain_iterations",
        "load_instructions",
        "store_instructions",
        "allocated_bytes",
        "special_iterations",
        "intdiv_iterations",
        "heaviest_leaf_share",
        "footprint_bytes",
    )
    + tuple(f"miss_bytes_{kib}kib" for kib in CACHE_KIB)
    + _MISSES
)

FEATURES = {"cdmpp": EXTRACTOR_VERSION, "ansor164": "ansor164-1"}
"""Name -> version of every kind of leaf vector that models can be trained on. ``ansor164``: the 164 numbers of Ansor's
per-store extractor, imported from files; zeros fill the rest of the width, and its kernels say nothing."""

LEAF_WIDTH = len(LEAF_NAMES)
KERNEL_WIDTH = len(KERNEL_NAMES)
