"""Loop programs without TVM: nodes named and shaped as TVM's, so that the walk and the leaves read both alike.

``script`` prints one as TVMScript: what TVM makes of that text has the same compact AST, which tests hold.
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
class _Binary(Expression):
    a: Expression
    b: Expression
    sign: ClassVar[str]

    @property
    def ty(self) -> str:  # type: ignore[override]
        """Of its operands."""
        return self.a.ty


class Add(_Binary):
    """a + b."""

    sign = "+"


class Sub(_Binary):
    """a - b."""

    sign = "-"


class Mul(_Binary):
    """a * b."""

    sign = "*"


class Div(_Binary):
    """a / b, of floats."""

    sign = "/"


class Max(_Binary):
    """The larger one."""

    sign = "T.max"


class Min(_Binary):
    """The smaller one."""

    sign = "T.min"


class LT(_Binary):
    """a < b."""

    sign = "<"

    ty = "bool"  # type: ignore[assignment]


class LE(_Binary):
    """a <= b."""

    sign = "<="

    ty = "bool"  # type: ignore[assignment]


class And(_Binary):
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


def script(program: LoopProgram) -> str:
    """TVMScript of a module with this one function."""
    buffers = [f'{b.name}: T.Buffer({_shape(b)}, "{b.dtype.name}")' for b in program.params]
    head = ["from tvm.script import ir as I", "from tvm.script import tirx as T", "", "@I.ir_module", "class Module:"]
    head += ["    @T.prim_func", f"    def main({', '.join(buffers)}):"]
    return "\n".join([*head, *_lines(program.body, 8), ""])


def _lines(node: Any, indent: int) -> list[str]:
    blank = " " * indent
    if isinstance(node, SeqStmt):
        return [line for part in node.seq for line in _lines(part, indent)]
    if isinstance(node, AllocBuffer):
        b = node.buffer
        return [f'{blank}{b.name} = T.alloc_buffer({_shape(b)}, "{b.dtype.name}")']
    if isinstance(node, For):
        return [f"{blank}for {node.loop_var.name} in range({node.extent}):", *_lines(node.body, indent + 4)]
    assert isinstance(node, BufferStore)
    return [f"{blank}{node.buffer.name}[{_places(node.indices)}] = {_text(node.value)}"]


def _shape(buffer: Buffer) -> str:
    return "(" + "".join(f"{extent}, " for extent in buffer.shape) + ")"


def _places(indices: Sequence[Expression]) -> str:
    return ", ".join(_text(index) for index in indices)


def _text(e: Expression) -> str:
    if isinstance(e, Var):
        return e.name
    if isinstance(e, IntImm):
        return str(e.value)
    if isinstance(e, FloatImm):
        return f"T.{e.ty}({e.value!r})"
    if isinstance(e, TensorLoad):
        return f"{e.source.name}[{_places(e.indices)}]"
    if isinstance(e, Call):
        return f"T.{e.op.name}({_places(e.args)})"
    if isinstance(e, Select):
        return f"T.Select({_places([e.condition, e.true_value, e.false_value])})"
    assert isinstance(e, _Binary)
    if e.sign.startswith("T."):
        return f"{e.sign}({_text(e.a)}, {_text(e.b)})"
    return f"({_text(e.a)} {e.sign} {_text(e.b)})"
