"""A compact AST as text that a person can read and a test can compare; and the page that lists all features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.kernel_features import KERNEL, KERNEL_FEATURES
from cdmpp.ast.leaf_features import ACCESS, CONTEXT, LEAF_FEATURES, LOOP, MEMORY, N_LOADS, N_LOOPS, OPS
from cdmpp.features import Feature, prefixed
from cdmpp.machine_code.code_features import CODE_FEATURES

_HEAD = """# Features

What models read of a program. Generated from the declarations by `python -m cdmpp.ast.text > docs/features.md`.

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
)


def render(ast: CompactAST) -> str:
    """Kernels and leaves in pre-order, every non-zero feature in its own unit, four significant digits."""
    size = f"{ast.n_kernel} kernels, {ast.n_leaf} leaves"
    lines = [f"{ast.target_kind} program: {size} (extractor {ast.extractor_version})"]
    for k in range(ast.n_kernel):
        lines.append(f"kernel {k}")
        lines += _rendered(KERNEL_FEATURES, ast.kernel_features[k])
        for i in np.flatnonzero(ast.leaf_kernels == k):
            lines.append(f"  leaf {i} at {ast.leaf_positions[i]} (serial {ast.leaf_serial_positions[i]})")
            lines += ["  " + line for line in _rendered(LEAF_FEATURES, ast.leaf_features[i])]
    return "\n".join(lines) + "\n"


def _rendered(features: Sequence[Feature], numbers: np.ndarray) -> list[str]:
    return [f"  {f.name} = {f.quantity(number):.4g}" for f, number in zip(features, numbers, strict=True) if number]


def features_page() -> str:
    """Markdown of ``docs/features.md``."""
    parts = [_HEAD]
    for title, text, features in _TABLES:
        rows = [f"| `{f.name}` | {f.unit} | {f.meaning.replace('``', '`')} |" for f in features]
        head = ["", f"## {title}", "", *([text, ""] if text else []), "| name | unit | meaning |", "|---|---|---|"]
        parts.append("\n".join([*head, *rows]).lstrip("\n") + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(features_page(), end="")
