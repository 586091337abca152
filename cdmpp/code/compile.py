"""Program -> code vector: TVM compiles it for its CPU target, LLVM IR and machine code are read. About 0.3 s each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cdmpp.code.code_vector import CODE_WIDTH, code_vector
from cdmpp.programs.task import Program

log = logging.getLogger(__name__)


class Compiled(NamedTuple):
    """The host module that holds a program, as text."""

    llvm_ir: str
    """Optimised."""
    assembly: str


def can_have_code(target: Mapping[str, Any]) -> bool:
    """True where machine code can be read for a target (``Device.target``): CPUs that run x86-64.

    The one place that decides it: what may not have code vectors is neither trained on nor asked with them.
    """
    return target["kind"] == "llvm" and str(target.get("mtriple") or "x86_64").startswith("x86_64")


def can_compile(target: Any) -> bool:
    """The same of a ``tvm.target.Target``."""
    return can_have_code({"mtriple": target.attrs.get("mtriple"), "kind": str(target.kind.name)})


def compiled(program: Program) -> Compiled:
    import tvm

    module = tvm.compile(program.module, target=program.target).mod
    return Compiled(str(module.inspect_source("ll")), str(module.inspect_source("asm")))


def code_vectors(programs: Sequence[Program], progress: bool = False) -> np.ndarray:
    """(n, CODE_WIDTH) float32; NaN for other targets and, with a warning, for what does not compile
    to x86-64."""
    from rich.progress import track

    failed: list[str] = []
    rows = np.full((len(programs), CODE_WIDTH), np.nan, np.float32)
    for row, program in enumerate(track(programs, "compiling for code vectors", disable=not progress)):
        if not can_compile(program.target):
            continue
        try:
            rows[row] = code_vector(*compiled(program))
        except Exception as error:  # noqa: BLE001 - TVM raises many types; the compact AST alone must do then
            failed.append(f"program {row} ({type(error).__name__}: {str(error)[-200:]})")
    if failed:
        text = "%d of %d programs have no code vector, they are predicted from their ASTs alone; the first: %s"
        log.warning(text, len(failed), len(programs), failed[0])
    return rows
