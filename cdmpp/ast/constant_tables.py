"""Constant tables in a program (Winograd's transform matrices): hidden from TVM's simplifier, then put back.

The simplifier carries the condition of every link of such a chain of selects into all later ones, which takes most of
the lowering time and finds nothing. As arguments of one call they are simplified one by one.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op
from tvm.tirx import FloatImm, IntImm, Select

_NAME = "cdmpp_constant_table"
_SHORTEST = 4  # links; shorter chains stay as they are


def hide(function: Any) -> Any:
    """Return the PrimFunc with every table as one call."""

    def replace(select: Any, mutator: Any) -> Any:
        parts: list[Any] = []
        rest = select
        while isinstance(rest, Select) and isinstance(rest.true_value, IntImm | FloatImm):
            parts += [rest.condition, rest.true_value]
            rest = rest.false_value
        if len(parts) < 2 * _SHORTEST or not isinstance(rest, IntImm | FloatImm):
            return mutator.default_mutate(select)
        return tirx.call_pure_extern(select.ty.dtype, _NAME, *parts, rest)

    return tvm_ffi.structural_mutate(function, (Select, replace))


def restore(function: Any) -> Any:
    """Return the PrimFunc with selects again; links whose condition is constant are resolved."""
    extern = Op.get("tirx.call_pure_extern")

    def replace(call: Any, mutator: Any) -> Any:
        if not call.op.same_as(extern) or call.args[0].value != _NAME:
            return mutator.default_mutate(call)
        *parts, value = list(call.args)[1:]
        for condition, constant in zip(parts[-2::-2], parts[::-2], strict=True):
            if not isinstance(condition, IntImm):
                value = Select(condition, constant, value)
            elif condition.value:
                value = constant
        return value

    return tvm_ffi.structural_mutate(function, (Call, replace))
