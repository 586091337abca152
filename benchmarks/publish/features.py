"""The page that lists every feature a model reads, from its declaration.

``python -m benchmarks.publish.features`` writes ``docs/api/features.md``.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.publish.markdown import table, write_page
from cdmpp.ast.kernel_features import KERNEL
from cdmpp.ast.leaf_features import ACCESS, CONTEXT, LOOP, MEMORY, N_LOADS, N_LOOPS, OPS
from cdmpp.features import prefixed
from cdmpp.machine_code.cpu.code_features import CODE_FEATURES
from cdmpp.machine_code.gpu.gpu_code_features import GPU_CODE_FEATURES

PAGE = Path(__file__).parents[2] / "docs" / "api" / "features.md"
_HEAD = """# Features

What models read of a program. Generated from the declarations by `python -m benchmarks.publish.features`.

A flag is stored as 0 or 1 and a share as a number from 0 to 1. Of every other quantity x of leaves and kernels the
number sign(x) log2(1 + |x|) is stored, and of machine code log2(1 + x).
"""
_TABLES = (
    ("Leaf vector: operations", "Of one store, in a whole run of the program.", prefixed("ops", OPS)),
    ("Leaf vector: where the store stands", "", CONTEXT),
    (
        "Leaf vector: memory accesses",
        f"The store and its {N_LOADS} heaviest loads; `load0_` to `load{N_LOADS - 1}_` repeat what stands at `store_`.",
        prefixed("store", ACCESS),
    ),
    (
        "Leaf vector: loops",
        f"The {N_LOOPS} innermost loops of more than one trip; `loop1_` to `loop{N_LOOPS - 1}_` repeat `loop0_`.",
        prefixed("loop0", LOOP),
    ),
    (
        "Leaf and kernel vector: misses",
        "Estimates for caches and TLBs that evict what was used longest ago; zeros for GPUs, but for the footprint.",
        MEMORY,
    ),
    ("Kernel vector", "Of one launch or top-level loop nest; the misses above follow.", KERNEL[:-1]),
    ("Code vector", "Of a whole CPU program, from its LLVM IR and its machine code.", CODE_FEATURES),
    (
        "Code vector of a GPU program",
        "From its executed kernels: amounts of one multiprocessor for its share of the grid, all kernels together. "
        "Cycles are those of a simulated multiprocessor, and what each of its resources alone would take.",
        GPU_CODE_FEATURES,
    ),
)


def lines() -> list[str]:
    """Return the lines of the page."""
    page = _HEAD.splitlines()
    for title, text, features in _TABLES:
        rows = [(f"`{f.name}`", f.unit, f.meaning.replace("``", "`")) for f in features]
        page += [
            "",
            f"## {title}",
            "",
            *([text, ""] if text else []),
            *table(("name", "unit", "meaning"), rows, left=3),
        ]
    return page


if __name__ == "__main__":
    write_page(PAGE, lines())
