"""Program -> CompactAST. TVM ends on this floor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import KERNEL_NAMES
from cdmpp.ast.loop_nest import Kind, Tree
from cdmpp.ast.lowering import lower
from cdmpp.ast.native import summarise_native
from cdmpp.ast.summarise import summarise
from cdmpp.ast.walk import walk
from cdmpp.errors import UnsupportedProgramError
from cdmpp.programs.task import Program

_LAUNCH = [KERNEL_NAMES.index(name) for name in ("blocks", "block_threads")]


def is_gpu_target(target: Any) -> bool:
    """Of a ``tvm.target.Target``."""
    return "gpu" in [str(k) for k in target.keys]


def extract_readable(module: Any, target: Any) -> CompactAST:
    """The defining version, in plain Python; ``extract`` gives the same numbers faster."""
    gpu = is_gpu_target(target)
    return summarise(_walk(lower(module, target), gpu), gpu)


def extract(module: Any, target: Any) -> CompactAST:
    """Compact AST of a scheduled or lowered program.

    Uses the native walk where it could be compiled (see ``cdmpp.ast.native``), else the readable one.

    Args:
        module: ``tvm.IRModule`` with one PrimFunc, or the PrimFunc; for a Schedule, its ``.mod``.
        target: ``tvm.target.Target``.

    Raises:
        UnsupportedProgramError: no store, symbolic shape, while loop, several functions, TVM cannot lower it, or a
            GPU target and no loop bound to threads.
    """
    function, gpu = lower(module, target), is_gpu_target(target)
    ast = summarise_native(function, gpu)
    if ast is None:
        return summarise(_walk(function, gpu), gpu)
    if may_bind_no_thread(ast):
        _walk(function, gpu)
    return ast


def may_bind_no_thread(ast: CompactAST) -> bool:
    """Of a GPU's program: a loop nest without threads has the features of a launch with one; its tree has to tell."""
    return ast.target_kind == "gpu" and bool((ast.kernel_features[:, _LAUNCH] <= 1).all(axis=1).any())


def _walk(function: Any, gpu: bool) -> Tree:
    try:
        tree = walk(function)
    except RecursionError as error:
        raise UnsupportedProgramError("the loops and branches of the program are nested too deep to walk") from error
    bound = {leaf.kernel for leaf in tree.leaves if any(loop.kind == Kind.THREAD for loop in leaf.loops)}
    if gpu and len(bound) < len(tree.kernels):
        raise UnsupportedProgramError(
            f"{len(tree.kernels) - len(bound)} of {len(tree.kernels)} loop nests bind no loop to a GPU thread: the "
            "program is not scheduled for this target. Schedule it (MetaSchedule, dlight) or name a CPU device"
        )
    return tree


def extract_many(programs: Iterable[Program]) -> list[CompactAST]:
    """Compact ASTs in order; ``UnsupportedProgramError`` begins with place and name of the first that has none."""
    asts = []
    for index, program in enumerate(programs):
        try:
            asts.append(extract(program.module, program.target))
        except UnsupportedProgramError as error:
            name = f" ({program.name})" if program.name else ""
            raise UnsupportedProgramError(f"program {index}{name}: {error}") from error
    return asts
