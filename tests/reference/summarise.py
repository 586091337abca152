"""Loop nests -> CompactAST, in plain Python: the defining version. No TVM here."""

from __future__ import annotations

import numpy as np

from cdmpp.ast.compact_ast import CompactAST
from tests.reference.kernel import kernel_vector
from tests.reference.leaf import leaf_facts
from tests.reference.loop_nest import Tree


def summarise(tree: Tree, gpu: bool) -> CompactAST:
    """Compact AST of what the readable walk found."""
    facts = [leaf_facts(leaf, gpu) for leaf in tree.leaves]
    kernels = [
        kernel_vector(kernel, [f for f in facts if f.leaf.kernel == k], tree.function_allocations, gpu)
        for k, kernel in enumerate(tree.kernels)
    ]
    return CompactAST(
        np.array([f.vector() for f in facts], np.float32),
        np.array([leaf.position for leaf in tree.leaves], np.int32),
        np.array([leaf.serial_position for leaf in tree.leaves], np.int32),
        np.array([leaf.kernel for leaf in tree.leaves], np.int32),
        np.array(kernels, np.float32),
        "gpu" if gpu else "cpu",
    )
