"""Program -> code vector: TVM compiles it for its CPU target, and its LLVM IR is read. About 0.3 s a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cdmpp.code.code_vector import CODE_WIDTH, code_vector
from cdmpp.programs.task import Program


def can_compile(target: Any) -> bool:
    """True for targets that LLVM makes CPU code for."""
    return str(target.kind.name) == "llvm"


def llvm_ir(program: Program) -> str:
    """Optimised LLVM IR of the host module that holds the program."""
    import tvm

    return str(tvm.compile(program.module, target=program.target).mod.inspect_source("ll"))


def code_vectors(programs: Sequence[Program], progress: bool = False) -> np.ndarray:
    """(n, CODE_WIDTH) float32; NaN rows for programs of other targets and those that do not compile."""
    from rich.progress import track

    rows = np.full((len(programs), CODE_WIDTH), np.nan, np.float32)
    for row, program in enumerate(track(programs, "compiling for code vectors", disable=not progress)):
        if not can_compile(program.target):
            continue
        try:
            rows[row] = code_vector(llvm_ir(program))
        except Exception:  # noqa: BLE001, S112 - TVM raises many types; the compact AST alone must do then
            continue
    return rows
