"""Program -> LLVM IR and machine code, as TVM compiles it for its CPU target. About 0.1 s each, unrolled ones more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cdmpp.devices.gpu_core import described_archs
from cdmpp.programs.task import Program

LIMIT_S = 60.0
"""Longest time for one program, where nobody says another: lowering takes 30 ms, compiling 0.3 s as a rule."""


class Compiled(NamedTuple):
    """This is the host module that holds a program, as text."""

    llvm_ir: str
    """Optimised."""
    assembly: str


def can_have_code(target: Mapping[str, Any]) -> bool:
    """Return True where code vectors for a ``Device.target`` can be had: CPUs that run x86-64."""
    return target["kind"] == "llvm" and str(target.get("mtriple") or "x86_64").startswith("x86_64")


def can_have_gpu_code(target: Mapping[str, Any]) -> bool:
    """Return True for GPUs of NVIDIA of which a multiprocessor of that architecture is described."""
    return target["kind"] == "cuda" and str(target.get("arch", "")) in described_archs()


def can_compile(target: Any) -> bool:
    """Return True if code vectors can be read for a ``tvm.target.Target``, on a CPU or a GPU."""
    told = {name: target.attrs.get(name) for name in ("mtriple", "arch")} | {"kind": str(target.kind.name)}
    return can_have_code(told) or can_have_gpu_code(told)


def compiled(program: Program) -> Compiled:
    """Compile a program; raises whatever TVM raises for one that it cannot compile."""
    import tvm

    context = tvm.transform.PassContext.current()
    config = {**context.config, "tirx.disable_assert": _computes_apart(program.module)}
    with tvm.transform.PassContext(opt_level=context.opt_level, config=config):
        module = tvm.compile(program.module, target=program.target).mod
    return Compiled(str(module.inspect_source("ll")), str(module.inspect_source("asm")))


def _computes_apart(module: Any) -> bool:
    """True where the kernel is a function of its own, next to the wrapper that checks the arguments.

    The checks are never read then, and a third of the time goes into compiling them.
    """
    return all("tirx.noalias" in (function.attrs or {}) for function in module.functions.values())
