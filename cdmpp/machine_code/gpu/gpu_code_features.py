"""Declaration of the code vector of a GPU program: what its kernels execute, and how long a multiprocessor takes.

Amounts are of one multiprocessor for its share of the grid, all kernels together; what only one kernel has is of the
one that takes longest. Whatever changes a meaning raises ``GPU_CODE_VERSION``.
"""

from __future__ import annotations

from cdmpp.features import Feature, names, prefixed
from cdmpp.machine_code.gpu.sass_fields import CLASSES

GPU_CODE_VERSION = "gpu-4"
GPU_CYCLES = tuple(
    Feature(name, "cycles", meaning)
    for name, meaning in {
        "simulated": "of warps that live together, round by round",
        "far": "simulated as well, the second-level cache half as far again",
        "narrow": "simulated as well, with two thirds of its width",
        "merged": "simulated as well, halves of a warp that ask for the same words served together",
        "alone": "of one block that has the multiprocessor for itself",
        "issue": "to issue all instructions",
        "fma": "of the pipes of multiply-adds",
        "alu": "of the pipes of integers and comparisons",
        "special": "of the pipes of reciprocals, exponentials and conversions",
        "shared": "of the banks of shared memory",
        "merged_shared": "of the banks, were both halves of a warp served together",
        "l1": "of the first-level cache",
        "l2": "of what the second-level cache gives",
        "stores": "to send what is stored to the second-level cache",
        "stack": "of accesses to the stack, in the first-level cache",
        "stack_stores": "to send on what is stored there",
        "stall": "that warps wait for their own results, round by round",
        "start": "to start all blocks of the grid, one a cycle",
    }.items()
)
"""Simulated, and what each resource by itself would take."""
_LONGEST = (
    Feature("share", "share", "cycles in those of all kernels"),
    Feature("registers", "registers", "of a thread"),
    Feature("stack_bytes", "bytes", "of a thread"),
    Feature("shared_bytes", "bytes", "of a block, without what the system reserves"),
    Feature("threads", "threads", "of a block"),
    Feature("blocks", "blocks", "of the grid"),
    Feature("resident_blocks", "blocks", "that a multiprocessor holds"),
    Feature("live_warps", "warps", "that it holds at once"),
    Feature("rounds", "rounds", "until its blocks have run"),
    Feature("instructions", "instructions", "in the text"),
    Feature("active_share", "share", "lanes that take part"),
    Feature("ffma_share", "share", "multiply-adds in what is issued"),
    Feature("missing_share", "share", "first touches of a sector that go to the second-level cache"),
    Feature("stopped_flag", "flag", "it was stopped before it ended"),
)
GPU_CODE_FEATURES = (
    Feature("kernels", "kernels", "of the program"),
    *prefixed("n", tuple(Feature(name, "instructions", name.replace("_", " ")) for name in CLASSES)),
    *prefixed("cycles", GPU_CYCLES),
    *prefixed("longest", _LONGEST, "longest kernel: "),
)
"""All but shares and flags are stored as log2(1 + x)."""
GPU_CODE_NAMES = names(GPU_CODE_FEATURES)
