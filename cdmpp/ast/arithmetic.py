"""Arithmetic of one store: what the compiler leaves of its value expression, and the loads in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cdmpp.ast.expression import (
    CHILDREN,
    DIVISIONS,
    call_name,
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


@dataclass
class Arithmetic:
    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(names(OPS), 0.0))
    loads: list[tuple[Any, Any, list[Any]]] = field(default_factory=list)
    """(buffer, indices, conditions that guard it)."""
    factors: list[Any] = field(default_factory=list)
    """Constant tables (nested selects of constants) that unrolling folds away."""

    @property
    def float_operations(self) -> float:
        """A multiply-add counted as one."""
        return sum(self.counts[name] for name in ("fma", "fadd", "fmul", "fdiv", "fcompare", "special"))


class Counter:
    def __init__(self, loops: list[Loop]) -> None:
        self.loops = loops
        self.unrolled = {loop.handle for loop in loops if loop.unrolled or loop.extent == 1}
        self.found = Arithmetic()

    def rate(self, expression: Any) -> float:
        """How often per iteration an integer expression is computed once the compiler has moved it out of the loops
        that it does not depend on, and folded it where only unrolled loops are left.
        """
        names = free_variables(expression, set())
        deepest = max((i for i, loop in enumerate(self.loops) if loop.handle in names - self.unrolled), default=-1)
        if deepest < 0:
            return 0.0
        inner = 1.0
        for loop in self.loops[deepest + 1 :]:
            if loop.handle not in names:
                inner *= loop.extent
        return 1.0 / inner

    def foldable(self, expression: Any) -> bool:
        return is_table(expression) and free_variables(expression, set()) <= self.unrolled

    def add(self, name: str, amount: float = 1.0) -> None:
        self.found.counts[name] += amount

    def value(self, e: Any, guards: list[Any]) -> None:
        kind = kind_of(e)
        if kind in ("IntImm", "FloatImm", "Var", "StringImm") or (kind == "Select" and self.foldable(e)):
            return
        if kind == "TensorLoad":
            self.found.loads.append((e.source, e.indices, list(guards)))
            for index in e.indices:
                self.value_of_index(index, guards)
        elif kind == "Mul" and (self.foldable(e.a) or self.foldable(e.b)):
            table, other = (e.a, e.b) if self.foldable(e.a) else (e.b, e.a)
            self.found.factors.append(table)
            self.value(other, guards)
        elif kind == "Call":
            self.call(e, guards)
        else:
            self.operator(e, kind)
            for name in CHILDREN:
                child = getattr(e, name, None)
                if child is not None:
                    self.value(child, guards)

    def operator(self, e: Any, kind: str) -> None:
        """Count the node itself, not what is below it."""
        if kind in _ARITHMETIC:
            self.binary(e, kind)
        elif kind in _COMPARE and is_float(e.a):
            self.add("fcompare")
        elif kind in _COMPARE:
            self.add("compare", self.rate(e))
        elif kind in ("And", "Or", "Not"):
            self.add("bool", self.rate(e))
        elif kind in ("Cast", "Select"):
            self.add(kind.lower())

    def binary(self, e: Any, kind: str) -> None:
        if is_float(e):
            if kind in ("Add", "Sub"):
                product = next((c for c in (e.b, e.a) if kind_of(c) == "Mul" and not self.folds(c)), None)
                if product is not None:
                    # The multiply below adds its own count; together they are one fused instruction.
                    self.add("fma")
                    self.add("fmul", -1.0)
                else:
                    self.add("fadd")
            elif kind == "Mul":
                self.add("fmul")
            elif kind in ("Min", "Max"):
                self.add("fcompare")
            else:
                self.add("fdiv")
        else:
            self.add("intdiv" if kind in DIVISIONS else "int", self.rate(e))

    def folds(self, product: Any) -> bool:
        return self.foldable(product.a) or self.foldable(product.b)

    def call(self, e: Any, guards: list[Any]) -> None:
        name = call_name(e)
        args = list(e.args)
        if name == "if_then_else":
            self.add("select")
            self.value(args[0], guards)
            self.value(args[1], [*guards, (args[0], True)])
            self.value(args[2], [*guards, (args[0], False)])
            return
        if name.startswith(("shift_", "bitwise_")):
            self.add("int", self.rate(e))
        elif name == "fma":
            self.add("fma")
        elif name in ("fabs", "floor", "ceil", "round", "trunc", "nearbyint"):
            self.add("fadd")
        elif name not in _FREE_CALLS:
            self.add("special")
        for argument in args:
            if hasattr(argument, "ty"):
                self.value(argument, guards)

    def value_of_index(self, e: Any, guards: list[Any]) -> None:
        """Index arithmetic: the divisions stay, most additions and products become strided addresses."""
        kind = kind_of(e)
        if kind in ("IntImm", "Var"):
            return
        if kind == "TensorLoad":
            self.value(e, guards)
            return
        if kind in DIVISIONS:
            divisor = e.b
            power_of_two = kind_of(divisor) == "IntImm" and int(divisor.value) & (int(divisor.value) - 1) == 0
            self.add("int" if power_of_two else "intdiv", self.rate(e))
        elif kind in ("Add", "Sub", "Mul", "Min", "Max"):
            self.add("int", self.rate(e))
        if kind == "Call":
            for argument in e.args:
                self.value_of_index(argument, guards)
            return
        for name in CHILDREN:
            child = getattr(e, name, None)
            if child is not None:
                self.value_of_index(child, guards)


def count(store: Any, loops: list[Loop]) -> Arithmetic:
    counter = Counter(loops)
    counter.value(store.value, [])
    for index in store.indices:
        counter.value_of_index(index, [])
    return counter.found


def nonzero_fraction(factors: list[Any], loops: list[Loop], points: Points) -> float:
    """Share of iterations in which no folded factor is zero: the compiler drops the others."""
    if not factors:
        return 1.0
    names: set[int] = set()
    for factor in factors:
        free_variables(factor, names)
    involved = [loop for loop in loops if loop.handle in names]
    n = 1
    for loop in involved:
        n *= loop.extent
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
