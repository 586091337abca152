"""Declaration of the leaf vector: what is said of one store. A change of any meaning bumps ``EXTRACTOR_VERSION``."""

from __future__ import annotations

from cdmpp.features import Feature, names, prefixed

N_LOADS = 4
"""Loads described per store, heaviest first."""
N_LOOPS = 6
"""Innermost loops described per store, innermost first."""
CACHE_KIB = (16, 32, 256, 1024, 4096, 32768)
"""Capacities at which the miss curve is sampled."""
CROWDED_KIB = (16, 32, 48)
"""Sizes of a first-level cache for which lines that crowd into few of its sets are counted."""
PAGE_ENTRIES = (64, 1536)
"""Pages that the two levels of a CPU's TLB hold."""

OPS = (
    Feature("fma", "operations", "fused multiply-adds"),
    Feature("fadd", "operations", "float additions, subtractions and roundings"),
    Feature("fmul", "operations", "float multiplications that are not fused"),
    Feature("fdiv", "operations", "float divisions"),
    Feature("fcompare", "operations", "float comparisons, minima and maxima"),
    Feature("special", "operations", "calls such as exp, tanh and sqrt"),
    Feature("select", "operations", "selections by a condition"),
    Feature("cast", "operations", "conversions of the type"),
    Feature("int", "operations", "integer operations left after hoisting and folding"),
    Feature("intdiv", "operations", "integer divisions and remainders by no power of two"),
    Feature("compare", "operations", "integer comparisons"),
    Feature("bool", "operations", "logical operations"),
)
"""Arithmetic of a store in a whole run of the program."""

CONTEXT = (
    Feature("iterations", "iterations", "runs of the store, repeated ones that the compiler drops left out"),
    Feature("blocks", "blocks", "thread blocks"),
    Feature("threads", "threads", "threads of a block"),
    Feature("vthreads", "threads", "virtual threads of a thread"),
    Feature("serial_trips", "trips", "trips of the loops inside a thread or, on CPUs, of all loops"),
    Feature("parallel_extent", "trips", "trips of the parallel loops"),
    Feature("vector_lanes", "lanes", "extent of the vectorised loop"),
    Feature("unrolled_trips", "trips", "copies of the body that unrolling makes"),
    Feature("region_trips", "trips", "trips of the innermost loops that are unrolled or short: they share registers"),
    Feature("reduction_trips", "trips", "trips of the loops that the store does not depend on"),
    Feature("inner_reduction_trips", "trips", "the same of the innermost loops alone"),
    Feature("accumulator_tile", "elements", "elements of the store inside the unrolled region"),
    Feature("depth", "loops", "loops around the store"),
    Feature("loops", "loops", "loops of more than one trip around the store"),
    Feature("unroll_limit", "steps", "largest body that the schedule lets TVM unroll"),
    Feature("explicit_unroll_flag", "flag", "TVM unrolls, not the compiler behind it"),
    Feature("pipeline_stages", "stages", "depth of the software pipeline"),
    Feature("guards", "conditions", "conditions around the store"),
    Feature("active_fraction", "share", "iterations in which the conditions hold"),
    Feature("constant_store_flag", "flag", "a constant is stored"),
    Feature("update_flag", "flag", "the store reads the element that it writes"),
    Feature("copy_flag", "flag", "an element is moved, nothing computed"),
    Feature("indirect_flag", "flag", "an index is itself loaded"),
    Feature("fold_fraction", "share", "iterations in which no factor of a constant table is zero"),
    Feature("refill_trips", "trips", "trips of the loops around the last loop with several statements"),
    Feature("flops_per_iteration", "operations", "float operations of one run of the store"),
    Feature("int_ops_per_iteration", "operations", "integer operations of one run, a division counted as four"),
    Feature("loads_per_iteration", "loads", "distinct loads without the accumulator"),
    Feature("vector_iterations", "iterations", "iterations over the lanes"),
    Feature("scalar_flag", "flag", "neither the schedule nor the compiler vectorises"),
    Feature("chain_trips", "trips", "additions that wait for the one before"),
    Feature("sync_flag", "flag", "the store goes to shared memory, so threads wait for each other"),
    Feature("redundant_trips", "trips", "trips that compute the same again, which the compiler drops"),
    Feature("auto_lanes", "lanes", "lanes that the compiler's own vectorisers find"),
    Feature("odd_lanes_flag", "flag", "the vector length is no power of two"),
)
"""Where a store stands."""

ACCESS = (
    Feature("present_flag", "flag", "there is such an access"),
    Feature("global_flag", "flag", "it goes to global memory"),
    Feature("shared_flag", "flag", "it goes to shared memory"),
    Feature("local_flag", "flag", "it goes to registers or thread-local memory"),
    Feature("written_before_flag", "flag", "the element is read before it is written"),
    Feature("element_bytes", "bytes", "size of an element"),
    Feature("buffer_bytes", "bytes", "size of the whole buffer"),
    Feature("unique_bytes", "bytes", "bytes touched, each counted once"),
    Feature("requested_bytes", "bytes", "bytes touched, each counted as often as it is"),
    Feature("reuse", "ratio", "requested over unique bytes"),
    Feature("trips_ideal", "instructions", "instructions of a thread if all that can stays in registers"),
    Feature("trips_region", "instructions", "instructions of a thread if only the unrolled region shares registers"),
    Feature("sectors_per_warp", "sectors", "32-byte sectors that the first warp touches"),
    Feature("sector_use_share", "share", "bytes of these sectors that are used"),
    Feature("lanes_distinct", "lanes", "lanes of the first warp with an address of their own"),
    Feature("bank_wavefronts", "wavefronts", "passes through the banks of shared memory that the first warp takes"),
    Feature("access_bytes", "bytes", "bytes that one instruction of a thread moves"),
    Feature("moved_bytes_ideal", "bytes", "bytes moved by ``trips_ideal``"),
    Feature("moved_bytes_region", "bytes", "bytes moved by ``trips_region``"),
    Feature("vector_stride_bytes", "bytes", "step from lane to lane"),
    Feature("vector_contiguous_flag", "flag", "lanes are neighbours"),
    Feature("inner_stride_bytes", "bytes", "step of the innermost loop that stays a loop"),
    Feature("inner_dependent_flag", "flag", "the index changes with that loop"),
    Feature("lines", "lines", "64-byte cache lines touched"),
    Feature("line_use_share", "share", "bytes of these lines that are used"),
    Feature("block_unique_bytes", "bytes", "bytes that one block, or one trip of the parallel loops, touches"),
    Feature("guarded_fraction", "share", "iterations in which the conditions around the load hold"),
)
"""One load or store."""

LOOP = (
    Feature("extent", "trips", "trips"),
    Feature("reduction_flag", "flag", "the store does not depend on it"),
    Feature("unrolled_flag", "flag", "it is unrolled"),
    Feature("vector_flag", "flag", "it is vectorised"),
    Feature("store_stride_bytes", "bytes", "step of the store"),
    Feature("load0_stride_bytes", "bytes", "step of the heaviest load"),
    Feature("load1_stride_bytes", "bytes", "step of the second heaviest load"),
)
"""One of the loops around a store."""

MISSES = tuple(
    Feature(f"miss_bytes_{kib}kib", "bytes", f"what reaches beyond a cache of {kib} KiB") for kib in CACHE_KIB
)
CROWDED_MISSES = (
    *(
        Feature(f"crowded_miss_bytes_{kib}kib", "bytes", f"the same beyond {kib} KiB in 64 sets, which rows may crowd")
        for kib in CROWDED_KIB
    ),
    *(Feature(f"page_misses_{n}", "pages", f"translations beyond a TLB of {n} pages") for n in PAGE_ENTRIES),
)
FOOTPRINT = Feature("footprint_bytes", "bytes", "cache lines of all accesses")
MEMORY = (*MISSES, FOOTPRINT, *CROWDED_MISSES)
"""What a store and its loads ask of the memory."""

LEAF_FEATURES = (
    *prefixed("ops", OPS),
    *CONTEXT,
    *prefixed("store", ACCESS, "the store: "),
    *(f for i in range(N_LOADS) for f in prefixed(f"load{i}", ACCESS, f"load {i}: ")),
    *(f for i in range(N_LOOPS) for f in prefixed(f"loop{i}", LOOP, f"loop {i}: ")),
    *MEMORY,
)
LEAF_NAMES = names(LEAF_FEATURES)
LEAF_WIDTH = len(LEAF_FEATURES)
