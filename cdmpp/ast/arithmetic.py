"""Arithmetic of one store: what the compiler leaves of its value expression, and the loads in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cdmpp.ast.expression import (
    DIVISIONS,
    call_name,
    children,
    evaluate,
    free_variables,
    is_float,
    is_table,
    kind_of,
)
from cdmpp.ast.leaf_features import OPS
from cdmpp.ast.loop_nest import Loop
from cdmpp.ast.points import Points
from cdmpp.features import names

MAX_ENUMERATED = 4096
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "FloorDiv", "FloorMod", "Mod", "Min", "Max")
_COMPARE = ("EQ", "NE", "LT", "LE", "GT", "GE")
_FREE_CALLS = ("likely", "reinterpret", "tvm_access_ptr", "address_of")
_ROUNDINGS = ("fabs", "floor", "ceil", "round", "trunc", "nearbyint")
_FLOAT_OPS = {"Add": "fadd", "Sub": "fadd", "Mul": "fmul", "Min": "fcompare", "Max": "fcompare"}
_Guards = tuple[tuple[Any, bool], ...]


@dataclass(frozen=True)
class Arithmetic:
    """What one run of a store computes and reads."""

    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(names(OPS), 0.0))
    """Operations by the names of ``OPS``."""
    loads: list[tuple[Any, Any, _Guards]] = field(default_factory=list)
    """(buffer, indices, conditions that guard it)."""
    factors: list[Any] = field(default_factory=list)
    """Constant tables (nested selects of constants) that unrolling folds away."""

    @property
    def float_operations(self) -> float:
        """A multiply-add counted as one."""
        return sum(self.counts[name] for name in ("fma", "fadd", "fmul", "fdiv", "fcompare", "special"))


def count(store: Any, loops: list[Loop]) -> Arithmetic:
    """Of a BufferStore inside ``loops``."""
    counter = _Counter(loops)
    counter.value(store.value, ())
    for index in store.indices:
        counter.index(index, ())
    return counter.arithmetic


class _Counter:
    def __init__(self, loops: list[Loop]) -> None:
        self.loops = loops
        self.unrolled = {loop.handle for loop in loops if loop.unrolled or loop.extent == 1}
        self.arithmetic = Arithmetic()

    def rate(self, expression: Any) -> float:
        """How often per iteration an integer expression is computed.

        The compiler moves it out of the loops that it does not depend on, and folds it where only unrolled loops are
        left.
        """
        variables = free_variables(expression, set())
        deepest = max((i for i, loop in enumerate(self.loops) if loop.handle in variables - self.unrolled), default=-1)
        if deepest < 0:
            return 0.0
        inner = 1.0
        for loop in self.loops[deepest + 1 :]:
            if loop.handle not in variables:
                inner *= loop.extent
        return 1.0 / inner

    def folds(self, expression: Any) -> bool:
        return is_table(expression) and free_variables(expression, set()) <= self.unrolled

    def add(self, name: str, amount: float = 1.0) -> None:
        self.arithmetic.counts[name] += amount

    def value(self, e: Any, guards: _Guards) -> None:
        """Count an expression whose value is needed."""
        kind = kind_of(e)
        if kind in ("IntImm", "FloatImm", "Var", "StringImm") or (kind == "Select" and self.folds(e)):
            return
        if kind == "TensorLoad":
            self.arithmetic.loads.append((e.source, e.indices, guards))
            for index in e.indices:
                self.index(index, guards)
        elif kind == "Mul" and (self.folds(e.a) or self.folds(e.b)):
            table, other = (e.a, e.b) if self.folds(e.a) else (e.b, e.a)
            self.arithmetic.factors.append(table)
            self.value(other, guards)
        elif kind == "Call":
            self.call(e, guards)
        else:
            self.operator(e, kind)
            for child in children(e):
                self.value(child, guards)

    def operator(self, e: Any, kind: str) -> None:
        """Count the node itself, not what is below it."""
        if kind in _ARITHMETIC and not is_float(e):
            self.add("intdiv" if kind in DIVISIONS else "int", self.rate(e))
        elif kind in ("Add", "Sub") and any(self.multiplies(c) for c in (e.b, e.a)):
            # The multiply below adds its own count; together they are one fused instruction.
            self.add("fma")
            self.add("fmul", -1.0)
        elif kind in _ARITHMETIC:
            self.add(_FLOAT_OPS.get(kind, "fdiv"))
        elif kind in _COMPARE and is_float(e.a):
            self.add("fcompare")
        elif kind in _COMPARE:
            self.add("compare", self.rate(e))
        elif kind in ("And", "Or", "Not"):
            self.add("bool", self.rate(e))
        elif kind in ("Cast", "Select"):
            self.add(kind.lower())

    def multiplies(self, e: Any) -> bool:
        return kind_of(e) == "Mul" and not self.folds(e.a) and not self.folds(e.b)

    def call(self, e: Any, guards: _Guards) -> None:
        name, args = call_name(e), list(e.args)
        if name == "if_then_else":
            self.add("select")
            for arg, extra in zip(args, ((), ((args[0], True),), ((args[0], False),)), strict=True):
                self.value(arg, guards + extra)
            return
        if name.startswith(("shift_", "bitwise_")):
            self.add("int", self.rate(e))
        elif name not in _FREE_CALLS:
            self.add("fma" if name == "fma" else "fadd" if name in _ROUNDINGS else "special")
        for arg in args:
            if hasattr(arg, "ty"):
                self.value(arg, guards)

    def index(self, e: Any, guards: _Guards) -> None:
        """Index arithmetic: the divisions stay, most additions and products become strided addresses."""
        kind = kind_of(e)
        if kind == "TensorLoad":
            self.value(e, guards)
        if kind in ("IntImm", "Var", "TensorLoad"):
            return
        if kind in DIVISIONS:
            shift = kind_of(e.b) == "IntImm" and int(e.b.value) & (int(e.b.value) - 1) == 0
            self.add("int" if shift else "intdiv", self.rate(e))
        elif kind in ("Add", "Sub", "Mul", "Min", "Max"):
            self.add("int", self.rate(e))
        for part in e.args if kind == "Call" else children(e):
            self.index(part, guards)


def nonzero_fraction(factors: list[Any], loops: list[Loop], points: Points) -> float:
    """Share of iterations in which no folded factor is zero: the compiler drops the others."""
    if not factors:
        return 1.0
    variables: set[int] = set()
    for factor in factors:
        free_variables(factor, variables)
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
    kept = np.ones(n, bool)
    for factor in factors:
        kept &= evaluate(factor, env, n) != 0
    return float(np.mean(kept[chosen]))
