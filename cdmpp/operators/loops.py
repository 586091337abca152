"""Loop programs without TVM: nodes named and shaped as TVM's, so that the walk and the leaves read both alike.

``loop_script`` prints one as TVMScript: what TVM makes of that text has the same compact AST, which tests hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class ElementType:
    """``float32`` and the like."""

    name: str

    @property
    def bits(self) -> int:
        """Of one element."""
        return int(self.name.lstrip("abcdefghijklmnopqrstuvwxyz").partition("_")[0])


class _Node:
    """Compared by identity, as TVM's handles are."""

    def __chandle__(self) -> int:
        return id(self)


@dataclass(frozen=True, eq=False)
class Buffer(_Node):
    """A tensor in global memory."""

    name: str
    shape: tuple[int, ...]
    dtype: ElementType

    def scope(self) -> str:
        """Of memory."""
        return "global"

    def __getitem__(self, indices: Any) -> TensorLoad:
        places = indices if isinstance(indices, tuple) else (indices,)
        return TensorLoad(self, [_expression(place) for place in places])


class Expression(_Node):
    """Has a type, and the operators of arithmetic."""

    ty: str

    def __add__(self, other: Any) -> Add:
        return Add(self, _expression(other, self.ty))

    def __sub__(self, other: Any) -> Sub:
        return Sub(self, _expression(other, self.ty))

    def __mul__(self, other: Any) -> Mul:
        return Mul(self, _expression(other, self.ty))

    def __truediv__(self, other: Any) -> Div:
        return Div(self, _expression(other, self.ty))


@dataclass(frozen=True, eq=False)
class Var(Expression):
    """Of a loop."""

    name: str
    ty: str = "int64"


@dataclass(frozen=True, eq=False)
class IntImm(Expression):
    """A whole number."""

    value: int
    ty: str = "int64"


@dataclass(frozen=True, eq=False)
class FloatImm(Expression):
    """A number of a float type."""

    value: float
    ty: str = "float32"


@dataclass(frozen=True, eq=False)
class TensorLoad(Expression):
    """An element of a buffer."""

    source: Buffer
    indices: Sequence[Expression]

    @property
    def ty(self) -> str:  # type: ignore[override]
        """Of the element."""
        return self.source.dtype.name


@dataclass(frozen=True, eq=False)
class Binary(Expression):
    """Of two operands."""

    a: Expression
    b: Expression
    sign: ClassVar[str]

    @property
    def ty(self) -> str:  # type: ignore[override]
        """Of its operands."""
        return self.a.ty


class Add(Binary):
    """a + b."""

    sign = "+"


class Sub(Binary):
    """a - b."""

    sign = "-"


class Mul(Binary):
    """a * b."""

    sign = "*"


class Div(Binary):
    """a / b, of floats."""

    sign = "/"


class Max(Binary):
    """The larger one."""

    sign = "T.max"


class LT(Binary):
    """a < b."""

    sign = "<"

    ty = "bool"  # type: ignore[assignment]


class LE(Binary):
    """a <= b."""

    sign = "<="

    ty = "bool"  # type: ignore[assignment]


class And(Binary):
    """Both hold."""

    sign = "and"

    ty = "bool"  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Select(Expression):
    """One of two values, both computed."""

    condition: Expression
    true_value: Expression
    false_value: Expression

    @property
    def ty(self) -> str:  # type: ignore[override]
        """Of its values."""
        return self.true_value.ty


@dataclass(frozen=True)
class Op:
    """What is called."""

    name: str


@dataclass(frozen=True, eq=False)
class Call(Expression):
    """``exp`` and the like."""

    op: Op
    args: Sequence[Expression]
    ty: str = "float32"


def call(name: str, *args: Expression) -> Call:
    """Of the type of its last argument."""
    return Call(Op(name), list(args), args[-1].ty)


@dataclass(frozen=True, eq=False)
class BufferStore(_Node):
    """``buffer[indices] = value``."""

    buffer: Buffer
    value: Expression
    indices: Sequence[Expression]


@dataclass(frozen=True, eq=False)
class For(_Node):
    """A serial loop from zero."""

    loop_var: Var
    extent: int
    body: Any
    kind: int = 0
    min: IntImm = field(default_factory=lambda: IntImm(0))
    annotations: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AllocBuffer(_Node):
    """Scratch memory of the program."""

    buffer: Buffer


@dataclass(frozen=True, eq=False)
class SeqStmt(_Node):
    """One after the other."""

    seq: Sequence[Any]


@dataclass(frozen=True, eq=False)
class LoopProgram:
    """What ``cdmpp.ast.walk`` takes."""

    params: Sequence[Buffer]
    body: SeqStmt


def _expression(value: Any, ty: str = "int64") -> Expression:
    if isinstance(value, Expression):
        return value
    return FloatImm(float(value), ty) if "float" in ty else IntImm(int(value), ty)


def store(buffer: Buffer, indices: Sequence[Any], value: Any) -> BufferStore:
    """``buffer[indices] = value``; a number takes the buffer's type."""
    return BufferStore(buffer, _expression(value, buffer.dtype.name), [_expression(index) for index in indices])


def nest(variables: Sequence[Var], extents: Sequence[int], *body: Any) -> For:
    """Loops around what follows, the first outermost."""
    inner: Any = body[0] if len(body) == 1 else SeqStmt(list(body))
    for variable, extent in zip(reversed(variables), reversed(extents), strict=True):
        inner = For(variable, extent, inner)
    return inner
