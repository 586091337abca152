"""Program -> CompactAST. TVM ends on this floor."""

from __future__ import annotations

from typing import Any

import numpy as np

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.kernel import kernel_vector
from cdmpp.ast.leaf import leaf_facts, leaf_vector
from cdmpp.ast.lowering import lower
from cdmpp.ast.walk import Tree, walk


def is_gpu_target(target: Any) -> bool:
    return "gpu" in [str(k) for k in target.keys]


def extract_readable(module: Any, target: Any) -> CompactAST:
    """The defining version, in plain Python; ``extract`` gives the same numbers faster."""
    return summarise(walk(lower(module, target)), is_gpu_target(target))


def summarise(tree: Tree, gpu: bool) -> CompactAST:
    facts = [leaf_facts(leaf, gpu) for leaf in tree.leaves]
    kernels = [
        kernel_vector(kernel, [f for f in facts if f.leaf.kernel == k], tree.function_allocations, gpu)
        for k, kernel in enumerate(tree.kernels)
    ]
    return CompactAST(
        np.stack([leaf_vector(f) for f in facts]),
        np.array([leaf.position for leaf in tree.leaves], np.int32),
        np.array([leaf.serial_position for leaf in tree.leaves], np.int32),
        np.array([leaf.kernel for leaf in tree.leaves], np.int32),
        np.stack(kernels),
        "gpu" if gpu else "cpu",
    )


def extract(module: Any, target: Any) -> CompactAST:
    return extract_readable(module, target)
