"""Program -> LLVM IR and machine code, as TVM compiles it for its CPU target. About 0.3 s each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cdmpp.programs.task import Program


class Compiled(NamedTuple):
    """The host module that holds a program, as text."""

    llvm_ir: str
    """Optimised."""
    assembly: str


def can_have_code(target: Mapping[str, Any]) -> bool:
    """True where code vectors can be had, to train or to ask with, for a ``Device.target``: CPUs that run x86-64."""
    return target["kind"] == "llvm" and str(target.get("mtriple") or "x86_64").startswith("x86_64")


def can_compile(target: Any) -> bool:
    """The same of a ``tvm.target.Target``."""
    return can_have_code({"mtriple": target.attrs.get("mtriple"), "kind": str(target.kind.name)})


def compiled(program: Program) -> Compiled:
    """Raises whatever TVM raises for a program that it cannot compile."""
    import tvm

    module = tvm.compile(program.module, target=program.target).mod
    return Compiled(str(module.inspect_source("ll")), str(module.inspect_source("asm")))
