"""Program -> CompactAST in plain Python: the readable reference that defines the numbers of the compiled extractor."""

from __future__ import annotations

from typing import Any

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.extract import is_gpu_target
from cdmpp.ast.lowering import lower
from cdmpp.errors import UnsupportedProgramError
from tests.reference.loop_nest import Kind, Tree
from tests.reference.summarise import summarise
from tests.reference.walk import walk


def extract_readable(module: Any, target: Any) -> CompactAST:
    """As ``cdmpp.ast.extract.extract``, with the same errors."""
    gpu = is_gpu_target(target)
    return summarise(bound_walk(lower(module, target), gpu), gpu)


def bound_walk(function: Any, gpu: bool) -> Tree:
    """The loop nests of a lowered PrimFunc; for a GPU each of them needs threads."""
    tree = walk(function)
    bound = {leaf.kernel for leaf in tree.leaves if any(loop.kind == Kind.THREAD for loop in leaf.loops)}
    if gpu and len(bound) < len(tree.kernels):
        raise UnsupportedProgramError(
            f"{len(tree.kernels) - len(bound)} of {len(tree.kernels)} loop nests bind no loop to a GPU thread: the "
            "program is not scheduled for this target. Schedule it (MetaSchedule, dlight) or name a CPU device"
        )
    return tree
