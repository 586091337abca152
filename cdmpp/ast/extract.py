"""Program -> CompactAST. TVM ends here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.lowering import lower
from cdmpp.ast.native import summarize
from cdmpp.ast.unlowered import read_unlowered
from cdmpp.errors import UnsupportedProgramError
from cdmpp.programs.task import Program


def is_gpu_target(target: Any) -> bool:
    """Return True if a ``tvm.target.Target`` is a GPU."""
    return "gpu" in [str(k) for k in target.keys]


def extract(module: Any, target: Any) -> CompactAST:
    """Extract the compact AST of a scheduled or lowered program.

    What is sure to be the same is read of the program as it is scheduled; the rest is lowered by TVM's passes first.

    Args:
        module: ``tvm.IRModule`` with one PrimFunc, or the PrimFunc; for a Schedule, its ``.mod``.
        target: ``tvm.target.Target``.

    Raises:
        UnsupportedProgramError: no store, symbolic shape, while loop, several functions, TVM cannot lower it, or a
            GPU target and no loop bound to threads.
    """
    gpu = is_gpu_target(target)
    (read,) = read_unlowered([module], gpu, True)
    return summarize(lower(module, target), gpu) if read is None else read


def extract_many(programs: Iterable[Program]) -> list[CompactAST]:
    """Extract ASTs in order; ``UnsupportedProgramError`` says which program is the first that has none."""
    asts = []
    for index, program in enumerate(programs):
        try:
            asts.append(extract(program.module, program.target))
        except UnsupportedProgramError as error:
            name = f" ({program.name})" if program.name else ""
            raise UnsupportedProgramError(f"program {index}{name}: {error}") from error
    return asts
