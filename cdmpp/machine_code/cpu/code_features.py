"""Declaration of the code vector: what a CPU program's LLVM IR and machine code say. See ``code_vector``.

Amounts are of a whole run of the program, ``hottest`` ones of one run of a piece of code. A change of any meaning bumps
``CODE_VERSION``; what makes numbers of the same meaning more exact raises ``CODE_READER``.
"""

from __future__ import annotations

from cdmpp.features import Feature, names, prefixed

CODE_VERSION = "6"
CODE_READER = "4"
"""Version of the reader; vectors of an earlier one are derived again. 4: what decides branches is carried out, also in
vectors."""
WIDTHS = (1, 4, 8, 16)
"""Lanes that a class is counted by: scalar, up to 128, 256 and 512 bits of float32."""

_BY_WIDTH = {
    "float": "float arithmetic",
    "divide": "divisions and square roots",
    "select": "comparisons and selections",
    "convert": "conversions",
    "load": "loads",
    "store": "stores",
}
CLASSES = (
    *(
        Feature(f"{kind}_{width}", "instructions", f"{meaning}, {width} lanes")
        for kind, meaning in _BY_WIDTH.items()
        for width in WIDTHS
    ),
    Feature("fused_lanes", "operations", "multiply-adds"),
    Feature("load_int", "instructions", "loads of an integer or pointer"),
    Feature("store_int", "instructions", "stores of an integer or pointer"),
    Feature("gather", "elements", "elements of gathers"),
    Feature("scatter", "elements", "elements of scatters"),
    Feature("masked", "instructions", "masked loads and stores"),
    Feature("shuffle", "instructions", "shuffles and steps of reductions"),
    Feature("broadcast", "instructions", "copies of one element to all lanes"),
    Feature("insert", "instructions", "single elements put into or taken from a vector"),
    Feature("vector_int", "instructions", "integer arithmetic on vectors"),
    Feature("scalar_int", "instructions", "integer arithmetic"),
    Feature("extend", "instructions", "changes of an integer's width"),
    Feature("int_divide", "operations", "integer divisions and remainders"),
    Feature("address", "instructions", "address computations"),
    Feature("branch", "instructions", "branches"),
    Feature("call", "calls", "calls of functions"),
    Feature("odd_vector", "instructions", "operations on vectors whose length is no power of two"),
    Feature("odd_wide_lanes", "lanes", "lanes of float arithmetic on such vectors of more than 16"),
    Feature("load_bytes", "bytes", "bytes loaded"),
    Feature("store_bytes", "bytes", "bytes stored"),
)
"""Instructions of the IR."""

RESOURCES = tuple(
    Feature(name, "cycles", meaning)
    for name, meaning in {
        "vector": "cycles of two vector ports",
        "load": "cycles of two load ports",
        "store": "cycles of one store port",
        "shuffle": "cycles of one shuffle port",
        "issue": "cycles to start four instructions each",
        "chain": "cycles of the longest chain of dependent additions",
    }.items()
)
"""Bounds of a block of the IR; the largest of these counts."""
EXTRA = (
    Feature("divider", "cycles", "cycles of the divider"),
    Feature("call", "cycles", "cycles of calls"),
    Feature("spill", "cycles", "cycles of values that no register is left for"),
)
"""Cycles that come on top of the largest bound."""

KINDS = tuple(
    Feature(f"is_{name}", "instructions", meaning)
    for name, meaning in {
        "fma": "multiplications and multiply-adds",
        "fadd": "float additions, subtractions and roundings",
        "fmax": "float minima and maxima",
        "divide": "float divisions, roots and their estimates",
        "gather": "gathers",
        "scatter": "scatters",
        "shuffle": "shuffles",
        "convert": "conversions",
        "compare": "vector comparisons",
        "vector_multiply": "integer multiplications of vectors",
        "move": "vector moves, zeroing included",
        "vector_int": "other vector instructions",
        "mask": "operations on masks",
        "call": "calls",
        "branch": "jumps and returns",
        "int_divide": "integer divisions",
        "int_multiply": "integer multiplications",
        "int": "other integer instructions",
        "int_move": "integer moves",
        "transfer": "moves between integer and vector registers",
    }.items()
)
"""Kinds of x86 instructions."""

MACHINE = (
    Feature("cycles", "cycles", "cycles of the simulated core"),
    Feature("latency_cycles", "cycles", "those of them beyond what its ports and width take"),
    Feature("overlap_cycles", "cycles", "what short loops save that start while the one before ends"),
    Feature("issue_cycles", "cycles", "cycles that the core's width needs"),
    Feature("float_cycles", "cycles", "cycles that the ports of float arithmetic need"),
    Feature("vector_cycles", "cycles", "cycles that all ports of vectors need"),
    Feature("shuffle_cycles", "cycles", "cycles that the ports of shuffles need"),
    Feature("integer_cycles", "cycles", "cycles that the ports of integers need"),
    Feature("load_cycles", "cycles", "cycles that the load ports need, gathers apart"),
    Feature("store_cycles", "cycles", "cycles that the store ports need, scatters included"),
    *(
        Feature(f"{kind}{moves}", "instructions", f"{kind.replace('_', ' ')}{moves}{meaning}")
        for kind, meaning in {
            "": "",
            "wide_": " of 64 bytes",
            "scalar_": " of one float",
            "masked_": " of the lanes that a mask names",
        }.items()
        for moves in ("loads", "stores")
    ),
    Feature("blocked_loads", "instructions", "loads that wait for several stores to reach the cache"),
    Feature("masked_waits", "instructions", "loads that wait for a masked store to reach the cache"),
    Feature("aliased_loads", "instructions", "loads that meet a store with the same low address bits"),
    Feature("l1_conflicts", "lines", "lines in use together that one set of the first-level cache cannot hold"),
    Feature("l2_conflicts", "lines", "lines in use together that one set of the second-level cache cannot hold"),
    Feature("spill_loads", "instructions", "loads from the stack"),
    Feature("spill_stores", "instructions", "stores to the stack"),
    Feature("scalar_floats", "instructions", "float arithmetic on one element"),
    Feature("vector_floats", "instructions", "float arithmetic on vectors"),
    Feature("gather_lanes", "elements", "elements of gathers"),
    Feature("scatter_lanes", "elements", "elements of scatters"),
    Feature("loop_runs", "iterations", "iterations of innermost loops"),
    Feature("loop_entries", "entries", "times that innermost loops are entered"),
    *KINDS,
)
"""Amounts of the machine code."""
MACHINE_AMOUNTS = names(MACHINE)

CODE_FEATURES = (
    *prefixed("n", CLASSES),
    *prefixed("cycles", (*RESOURCES, *EXTRA)),
    Feature("cycles", "cycles", "cycles of all blocks of the IR"),
    Feature("instructions_run", "instructions", "instructions of the IR, as often as they run"),
    Feature("instructions_text", "instructions", "instructions of the IR, as they stand in the text"),
    Feature("loop_runs", "iterations", "iterations of all loops"),
    Feature("loop_entries", "entries", "times that loops are entered"),
    Feature("unknown_loops", "0 or 1", "1 where data decide how often more than a hundredth of the instructions run"),
    Feature("hottest_cycles", "cycles", "cycles of the block that takes the most"),
    Feature("hottest_trips", "trips", "trips of the loop around it"),
    Feature("hottest_instructions", "instructions", "its instructions"),
    Feature("hottest_share", "share", "its cycles in those of all"),
    *prefixed("machine", MACHINE, "machine code: "),
    Feature("machine_text", "instructions", "instructions of the machine code, as they stand in the text"),
    Feature(
        "machine_unmatched_loops", "loops", "none since readers carry out what decides branches; before, those guessed"
    ),
    Feature("hottest_machine_cycles", "cycles", "cycles of the piece of machine code that takes the most"),
    Feature("hottest_machine_trips", "trips", "trips of its loop"),
    Feature("hottest_machine_instructions", "instructions", "its instructions"),
    Feature("hottest_machine_spills", "instructions", "its loads and stores on the stack"),
    Feature("hottest_machine_share", "share", "its cycles in those of all"),
)
"""All but shares are stored as log2(1 + x)."""
CODE_NAMES = names(CODE_FEATURES)
CODE_WIDTH = len(CODE_FEATURES)
