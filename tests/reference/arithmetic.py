"""Arithmetic of one store: what the compiler leaves of its value expression, and the loads in it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cdmpp.ast.leaf_features import OPS
from cdmpp.features import names
from tests.reference.expression import (
    DIVISIONS,
    call_name,
    children,
    evaluate,
    free_variables,
    is_constant,
    is_float,
    kind_of,
)
from tests.reference.loop_nest import Loop
from tests.reference.points import Points

MAX_ENUMERATED = 4096
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "FloorDiv", "FloorMod", "Mod", "Min", "Max")
_COMPARE = ("EQ", "NE", "LT", "LE", "GT", "GE")
_FREE_CALLS = ("likely", "reinterpret", "tvm_access_ptr", "address_of")
_ROUNDINGS = ("fabs", "floor", "ceil", "round", "trunc", "nearbyint")
_FLOAT_OPS = {"Add": "fadd", "Sub": "fadd", "Mul": "fmul", "Min": "fcompare", "Max": "fcompare"}
_Guards = tuple[tuple[Any, bool], ...]


class Arithmetic:
    """What one run of a BufferStore inside ``loops`` computes and reads."""

    def __init__(self, store: Any, loops: list[Loop]) -> None:
        self.counts = dict.fromkeys(names(OPS), 0.0)
        self.loads: list[tuple[Any, Any, _Guards]] = []
        """(buffer, indices, conditions that guard it)."""
        self.factors: list[Any] = []
        """Constant tables (nested selects of constants) that unrolling folds away."""
        self._loops = loops
        self._unrolled = {loop.handle for loop in loops if loop.unrolled or loop.extent == 1}
        self._value(store.value, ())
        for index in store.indices:
            self._index(index, ())

    @property
    def float_operations(self) -> float:
        """A multiply-add counted as one."""
        return sum(self.counts[name] for name in ("fma", "fadd", "fmul", "fdiv", "fcompare", "special"))

    def _rate(self, expression: Any) -> float:
        """How often per iteration an integer expression is computed, after hoisting and folding by the compiler."""
        variables = free_variables(expression)
        moving = [i for i, loop in enumerate(self._loops) if loop.handle in variables - self._unrolled]
        inside = [loop.extent for loop in self._loops[max(moving, default=-1) + 1 :] if loop.handle not in variables]
        return 1.0 / math.prod(inside) if moving else 0.0

    def _folds(self, expression: Any) -> bool:
        """True for selects of constants that unrolling decides, not for a constant alone."""
        alone = kind_of(expression) in ("FloatImm", "IntImm")
        return not alone and is_constant(expression) and free_variables(expression) <= self._unrolled

    def _value(self, e: Any, guards: _Guards) -> None:
        """Count an expression whose value is needed."""
        kind = kind_of(e)
        if kind in ("IntImm", "FloatImm", "Var", "StringImm") or (kind == "Select" and self._folds(e)):
            return
        if kind == "TensorLoad":
            self.loads.append((e.source, e.indices, guards))
            for index in e.indices:
                self._index(index, guards)
        elif kind == "Mul" and (self._folds(e.a) or self._folds(e.b)):
            table, other = (e.a, e.b) if self._folds(e.a) else (e.b, e.a)
            self.factors.append(table)
            self._value(other, guards)
        elif kind == "Call":
            self._call(e, guards)
        else:
            self._operator(e, kind)
            for child in children(e):
                self._value(child, guards)

    def _operator(self, e: Any, kind: str) -> None:
        """Count the node itself, not what is below it."""
        if kind in _ARITHMETIC and not is_float(e):
            self.counts["intdiv" if kind in DIVISIONS else "int"] += self._rate(e)
        elif kind in ("Add", "Sub") and any(self._multiplies(c) for c in (e.b, e.a)):
            # The multiply below adds its own count; together they are one fused instruction.
            self.counts["fma"] += 1.0
            self.counts["fmul"] -= 1.0
        elif kind in _ARITHMETIC:
            self.counts[_FLOAT_OPS.get(kind, "fdiv")] += 1.0
        elif kind in _COMPARE and is_float(e.a):
            self.counts["fcompare"] += 1.0
        elif kind in _COMPARE:
            self.counts["compare"] += self._rate(e)
        elif kind in ("And", "Or", "Not"):
            self.counts["bool"] += self._rate(e)
        elif kind in ("Cast", "Select"):
            self.counts[kind.lower()] += 1.0

    def _multiplies(self, e: Any) -> bool:
        return kind_of(e) == "Mul" and not self._folds(e.a) and not self._folds(e.b)

    def _call(self, e: Any, guards: _Guards) -> None:
        name, args = call_name(e), list(e.args)
        if name == "if_then_else":
            self.counts["select"] += 1.0
            for arg, extra in zip(args, ((), ((args[0], True),), ((args[0], False),)), strict=True):
                self._value(arg, guards + extra)
            return
        if name.startswith(("shift_", "bitwise_")):
            self.counts["int"] += self._rate(e)
        elif name not in _FREE_CALLS:
            self.counts["fma" if name == "fma" else "fadd" if name in _ROUNDINGS else "special"] += 1.0
        for arg in args:
            if hasattr(arg, "ty"):
                self._value(arg, guards)

    def _index(self, e: Any, guards: _Guards) -> None:
        """Index arithmetic: the divisions stay, most additions and products become strided addresses."""
        kind = kind_of(e)
        if kind == "TensorLoad":
            self._value(e, guards)
        if kind in ("IntImm", "Var", "TensorLoad"):
            return
        if kind in DIVISIONS:
            shift = kind_of(e.b) == "IntImm" and int(e.b.value) & (int(e.b.value) - 1) == 0
            self.counts["int" if shift else "intdiv"] += self._rate(e)
        elif kind in ("Add", "Sub", "Mul", "Min", "Max"):
            self.counts["int"] += self._rate(e)
        for part in e.args if kind == "Call" else children(e):
            self._index(part, guards)


def nonzero_fraction(factors: list[Any], loops: list[Loop], points: Points) -> float:
    """Share of iterations in which no folded factor is zero: the compiler drops the others."""
    if not factors:
        return 1.0
    variables = free_variables(*factors)
    involved = [loop for loop in loops if loop.handle in variables]
    n = math.prod(loop.extent for loop in involved)
    if n > MAX_ENUMERATED:
        env, n, chosen = points.env, points.count, points.random
    else:
        env, stride = {}, 1
        for loop in involved:
            env[loop.handle] = loop.start + (np.arange(n) // stride) % loop.extent
            stride *= loop.extent
        chosen = slice(0, n)
    kept = np.all([evaluate(factor, env, n) != 0 for factor in factors], axis=0)
    return float(np.mean(kept[chosen]))
