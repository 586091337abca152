"""Scheduled TensorIR -> the form leaves are read from: blocks opaque, buffers compact, nothing unrolled yet."""

from __future__ import annotations

import functools
from typing import Any

import tvm
from tvm import s_tir, tirx

from cdmpp.ast.constant_tables import hide, restore
from cdmpp.ast.native import refuse_deep
from cdmpp.errors import UnsupportedProgramError

TVM_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)
"""The exception that a pass of TVM raises for a program that it does not like."""
MAX_DEPTH = 300
"""The most that a stored expression may be nested. TVM's passes and the extractor recurse over it, and TVM would end
the whole process on a sum of some thousand terms; real programs are nested up to 100 deep."""


@functools.cache
def _passes() -> Any:
    s, x = s_tir.transform, tirx.transform
    passes = [
        s.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True),
        s.LowerCrossThreadReduction(),
        s.LowerInitBlock(),
        s.PlanAndUpdateBufferAllocationLocation(),
        s.ConvertBlocksToOpaque(),
        s.CompactBufferAllocation(),
        s.UnifyThreadBinding(),
        s.LowerMatchBuffer(),
        x.StmtSimplify(),
    ]
    return tvm.transform.Sequential(passes)


def main_function(module: Any) -> Any:
    """Return the one PrimFunc of a module, or the PrimFunc itself; ``UnsupportedProgramError`` where there is none."""
    if isinstance(module, tirx.PrimFunc):
        return module
    if not isinstance(module, tvm.IRModule):
        raise UnsupportedProgramError(
            f"a {type(module).__name__} was given; pass a tvm.IRModule or tirx.PrimFunc (for a Schedule, its .mod)"
        )
    functions = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    if len(functions) != 1:
        raise UnsupportedProgramError(
            f"the module holds {len(functions)} PrimFuncs; pass one tensor program at a time "
            "(cdmpp.programs.networks splits a Relax module into tasks)"
        )
    return functions[0]


def lower(module: Any, target: Any) -> Any:
    """Lower to a PrimFunc for the walk; ``UnsupportedProgramError``: several functions, too deep, or TVM refuses."""
    function = main_function(module)
    refuse_deep(function, MAX_DEPTH)
    function = hide(function).with_attr("global_symbol", "main")
    bound = tirx.transform.BindTarget(target)(tvm.IRModule({"main": function}))
    try:
        return restore(_passes()(bound)["main"])
    except TVM_ERRORS as error:
        reason = [type(error).__name__, *str(error).strip().splitlines()][-1]
        raise UnsupportedProgramError(f"TVM could not lower the program: {reason}") from error
