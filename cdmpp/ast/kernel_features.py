"""Declaration of the kernel vector: what is said of one launch or top-level loop nest. See ``leaf_features``."""

from __future__ import annotations

from cdmpp.ast.leaf_features import CROWDED_MISSES, FOOTPRINT, MISSES
from cdmpp.features import Feature, names

KERNEL = (
    Feature("gpu_flag", "flag", "the program is for a GPU"),
    Feature("blocks", "blocks", "thread blocks"),
    Feature("block_threads", "threads", "threads of a block"),
    Feature("warps_per_block", "warps", "warps of a block"),
    Feature("vthreads", "threads", "virtual threads of a thread"),
    Feature("shared_bytes", "bytes", "shared memory of a block"),
    Feature("local_bytes_per_thread", "bytes", "thread-local buffers"),
    Feature("pipeline_stages", "stages", "depth of the software pipeline"),
    Feature("unroll_limit", "steps", "largest body that the schedule lets TVM unroll"),
    Feature("leaves", "stores", "stores of the kernel"),
    Feature("flops", "operations", "float operations, a multiply-add counted as two"),
    Feature("fma_per_thread", "operations", "fused multiply-adds; on CPUs one thread does everything"),
    Feature("fp_per_thread", "operations", "float operations, a multiply-add counted as one"),
    Feature("special_per_thread", "operations", "calls such as exp, tanh and sqrt"),
    Feature("int_per_thread", "operations", "integer operations, a division counted as four"),
    Feature("select_per_thread", "operations", "selections by a condition"),
    Feature("branch_per_thread", "conditions", "conditions that are evaluated"),
    Feature("shared_loads_per_thread", "instructions", "loads from shared memory, with all reuse in registers"),
    Feature("shared_loads_region_per_thread", "instructions", "the same with reuse in the unrolled region alone"),
    Feature("shared_load_wavefronts_per_warp", "wavefronts", "passes through the banks, with all reuse"),
    Feature("shared_load_wavefronts_region_per_warp", "wavefronts", "the same with reuse in the region alone"),
    Feature("shared_stores_per_thread", "instructions", "stores to shared memory"),
    Feature("shared_store_wavefronts_per_warp", "wavefronts", "passes through the banks of these stores"),
    Feature("global_loads_per_thread", "instructions", "loads from global memory, with all reuse in registers"),
    Feature("global_loads_region_per_thread", "instructions", "the same with reuse in the unrolled region alone"),
    Feature("global_load_sectors_per_warp", "sectors", "32-byte sectors of these loads, with all reuse"),
    Feature("global_load_sectors_region_per_warp", "sectors", "the same with reuse in the region alone"),
    Feature("global_load_use_share", "share", "bytes of the loaded sectors that are used"),
    Feature("global_stores_per_thread", "instructions", "stores to global memory"),
    Feature("global_store_sectors_per_warp", "sectors", "sectors of these stores"),
    Feature("global_store_use_share", "share", "bytes of the stored sectors that are used"),
    Feature("global_read_bytes", "bytes", "bytes read, each counted once"),
    Feature("global_write_bytes", "bytes", "bytes written, each counted once"),
    Feature("block_read_bytes", "bytes", "bytes that one block reads, each counted once"),
    Feature("refill_rounds", "rounds", "times that shared memory is filled anew"),
    Feature("cross_thread_reductions", "reductions", "reductions over the threads of a block"),
    Feature("code_steps", "steps", "statements after unrolling, as TVM counts them"),
    Feature("max_region_trips", "trips", "copies of the largest unrolled region"),
    Feature("register_elements", "elements", "elements of thread-local buffers"),
    Feature("local_memory_trips", "instructions", "accesses to thread-local buffers that cannot live in registers"),
    Feature("min_active_fraction", "share", "smallest share of iterations in which a store runs"),
    Feature("fma_per_shared_load", "ratio", "multiply-adds a load from shared memory, in the heaviest store"),
    Feature("inner_body_trips", "trips", "trips of the heaviest store between two refills"),
    Feature("parallel_extent", "trips", "trips of the parallel loops"),
    Feature("iterations", "iterations", "runs of all stores"),
    Feature("vector_iterations", "iterations", "runs of vectorised stores over their lanes"),
    Feature("scalar_iterations", "iterations", "runs of stores that nothing vectorises"),
    Feature("gather_iterations", "accesses", "accesses of vector loops that are taken lane by lane"),
    Feature("odd_vector_iterations", "iterations", "runs of stores whose vector length is no power of two"),
    Feature("chain_iterations", "additions", "additions that wait for the one before"),
    Feature("load_instructions", "instructions", "loads of at most 64 bytes"),
    Feature("store_instructions", "instructions", "stores of at most 64 bytes"),
    Feature("allocated_bytes", "bytes", "scratch memory that is allocated at each call"),
    Feature("special_iterations", "operations", "calls such as exp, of all threads"),
    Feature("intdiv_iterations", "operations", "integer divisions, of all threads"),
    Feature("heaviest_leaf_share", "share", "work of the heaviest store in that of all"),
    FOOTPRINT,
)
"""Without the misses."""

KERNEL_FEATURES = (*KERNEL, *MISSES, *CROWDED_MISSES)
KERNEL_NAMES = names(KERNEL_FEATURES)
KERNEL_WIDTH = len(KERNEL_FEATURES)
