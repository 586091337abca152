"""Numbers out of TVM index expressions: evaluated at many points of the loop space at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_BINARY: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Min": np.minimum,
    "Max": np.maximum,
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Div": np.floor_divide,
    "Mod": np.mod,
    "bitwise_and": lambda a, b: a.astype(np.int64) & b.astype(np.int64),
    "shift_left": lambda a, b: a.astype(np.int64) << np.clip(b, 0, 62).astype(np.int64),
    "shift_right": lambda a, b: a.astype(np.int64) >> np.clip(b, 0, 62).astype(np.int64),
}
DIVISIONS = ("FloorDiv", "FloorMod", "Div", "Mod")
_CHILDREN = ("a", "b", "condition", "true_value", "false_value", "value", "base", "body")
_CONSTANT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("IntImm", "FloatImm"), ()),
    **dict.fromkeys(("Cast", "Broadcast"), ("value",)),
    **dict.fromkeys(("Add", "Sub", "Mul"), ("a", "b")),
    "Select": ("true_value", "false_value"),
}
"""What must be constant for an expression to be it."""
_LEAVES = ("IntImm", "FloatImm", "StringImm", "Var")


def kind_of(node: Any) -> str:
    """Name of its class."""
    return type(node).__name__


def is_float(expression: Any) -> bool:
    """True where the value is a float."""
    return "float" in str(expression.ty)


def call_name(expression: Any) -> str:
    """Last part of a Call's operator name: ``if_then_else``, ``exp``, ``shift_right`` ..."""
    return str(getattr(expression.op, "name", "")).rsplit(".", 1)[-1]


def children(expression: Any) -> list[Any]:
    """Operands of an operator."""
    return [child for name in _CHILDREN if (child := getattr(expression, name, None)) is not None]


def parts(expression: Any) -> list[Any]:
    """The same of any expression: indices of loads and arguments of calls too."""
    kind = kind_of(expression)
    if kind in _LEAVES:
        return []
    if kind in ("TensorLoad", "Call"):
        return list(expression.indices if kind == "TensorLoad" else expression.args)
    return children(expression)


def free_variables(*expressions: Any) -> set[int]:
    """Handles of all variables, those inside data-dependent loads included."""
    own = {expression.__chandle__() for expression in expressions if kind_of(expression) == "Var"}
    return own.union(*(free_variables(*parts(expression)) for expression in expressions))


def has_load(expression: Any) -> bool:
    """True where the value depends on data."""
    return kind_of(expression) == "TensorLoad" or any(has_load(part) for part in parts(expression))


def is_constant(expression: Any) -> bool:
    """True where the value depends on loop variables only through selects of constants."""
    kind = kind_of(expression)
    if kind == "Select" and has_load(expression.condition):
        return False
    return kind in _CONSTANT and all(is_constant(getattr(expression, name)) for name in _CONSTANT[kind])


def evaluate(expression: Any, env: dict[int, np.ndarray], n_points: int) -> np.ndarray:
    """Value at each point, (n_points,) int64 (float64 where floats occur).

    Data-dependent parts (loads, unknown calls) count as 0; unbound variables too. Division by zero gives 0.
    """
    kind = kind_of(expression)
    if kind in ("IntImm", "FloatImm"):
        return np.full(n_points, expression.value, np.int64 if kind == "IntImm" else np.float64)
    if kind == "Var":
        value = env.get(expression.__chandle__())
        return np.zeros(n_points, np.int64) if value is None else value
    operands = expression.args if kind == "Call" else children(expression)
    name = call_name(expression) if kind == "Call" else kind
    if name in ("likely", "Cast", "Broadcast", "Ramp", "Not"):
        value = evaluate(operands[0], env, n_points)
        return (value == 0).astype(np.int64) if name == "Not" else value
    if name in ("Select", "if_then_else"):
        condition, yes, no = (evaluate(operand, env, n_points) for operand in operands)
        return np.where(condition != 0, yes, no)
    if name not in _BINARY:
        return np.zeros(n_points, np.int64)
    a, b = (evaluate(operand, env, n_points) for operand in operands)
    if name in DIVISIONS:
        return np.where(b == 0, 0, _BINARY[name](a, np.where(b == 0, 1, b)))
    result = _BINARY[name](a, b)
    return result.astype(np.int64) if result.dtype == np.bool_ else result
