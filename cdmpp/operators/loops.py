"""Loop programs without TVM: nodes named and shaped as TVM's, so that the compiled extractor reads both alike.

The nodes are objects of ``tvm_ffi``, TVM's object system, which is a small package of its own and needs no TVM: C++
looks their fields up by name. Fields that hold nodes are declared as Any: narrower ones are checked object by object,
which takes longer than to make them. ``loop_script`` prints a program as TVMScript: what TVM makes of that text has the
same compact AST, which tests hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tvm_ffi import dtype
from tvm_ffi.dataclasses import field, py_class
from tvm_ffi.dataclasses.field import init_property

if TYPE_CHECKING:

    class Object:
        """A node is an object whose constructor takes its fields in their order."""

        def __init__(self, *fields: Any) -> None: ...
else:
    from tvm_ffi import Object

_Class = TypeVar("_Class", bound=type)


def _node(cls: _Class) -> _Class:
    """Make a class one of the object system, whose fields it annotates; C++ knows it by the last part of its key."""
    made: _Class = py_class(f"cdmpp.loops.{cls.__name__}")(cls)
    return made


@_node
class PrimType(Object):
    """An element or a number has this type."""

    dtype: dtype


@_node
class BufferType(Object):
    """The type of a tensor is its extents, the type of its elements and the memory that it lies in."""

    shape: Any
    dtype: Any
    storage_scope: str = "global"


@cache
def prim_type(name: str) -> PrimType:
    """Return the type ``float32``, ``int64``, ``bool`` and the like."""
    return PrimType(dtype(name))


@_node
class Buffer(Object):
    """A buffer is a tensor in global memory."""

    name: str
    ty: Any

    @property
    def element(self) -> str:
        """Return the name of the element type."""
        return str(self.ty.dtype.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the extents."""
        return tuple(extent.value for extent in self.ty.shape)

    def __getitem__(self, indices: Any) -> TensorLoad:
        places = indices if isinstance(indices, tuple) else (indices,)
        return TensorLoad(self, [_expression(place) for place in places])


def buffer(name: str, shape: Sequence[IntImm | int], element: str) -> Buffer:
    """Make a tensor of ``shape`` whose elements are of the type ``element``."""
    return Buffer(name, BufferType([_expression(extent) for extent in shape], prim_type(element)))


@_node
class Expression(Object):
    """A value has a type, and the operators of arithmetic; a number takes the type of the other operand."""

    if TYPE_CHECKING:
        ty: Any

    @property
    def element(self) -> str:
        """Return the name of its type."""
        return str(self.ty.dtype)

    def __add__(self, other: Any) -> Add:
        return Add(self, _expression(other, self.element))

    def __sub__(self, other: Any) -> Sub:
        return Sub(self, _expression(other, self.element))

    def __mul__(self, other: Any) -> Mul:
        return Mul(self, _expression(other, self.element))

    def __truediv__(self, other: Any) -> Div:
        return Div(self, _expression(other, self.element))


@_node
class Var(Expression):
    """This is the variable of a loop."""

    name: str
    ty: Any = field(default_factory=lambda: prim_type("int64"))


@_node
class IntImm(Expression):
    """This is a whole number."""

    value: Any
    ty: Any = field(default_factory=lambda: prim_type("int64"))


@_node
class FloatImm(Expression):
    """This is a number of a float type."""

    value: float
    ty: PrimType


@_node
class TensorLoad(Expression):
    """This is an element of a buffer."""

    source: Any
    indices: Any

    @init_property
    def ty(self) -> PrimType:
        """The type is that of the element."""
        return self.source.ty.dtype


@_node
class Binary(Expression):
    """This is an operation on two operands."""

    a: Any
    b: Any
    sign: ClassVar[str]


@_node
class Calculation(Binary):
    """The result has the type of the operands."""

    @init_property
    def ty(self) -> PrimType:
        """The type is that of the operands."""
        return self.a.ty


@_node
class Condition(Binary):
    """The operation holds or does not."""

    ty: Any = field(default_factory=lambda: prim_type("bool"), init=False)


@_node
class Add(Calculation):
    """The value is a + b."""

    sign = "+"


@_node
class Sub(Calculation):
    """The value is a - b."""

    sign = "-"


@_node
class Mul(Calculation):
    """The value is a * b."""

    sign = "*"


@_node
class Div(Calculation):
    """The value is a / b, of floats."""

    sign = "/"


@_node
class Max(Calculation):
    """The value is the larger operand."""

    sign = "T.max"


@_node
class LT(Condition):
    """The condition is a < b."""

    sign = "<"


@_node
class LE(Condition):
    """The condition is a <= b."""

    sign = "<="


@_node
class And(Condition):
    """The condition is that both hold."""

    sign = "and"


@_node
class Select(Expression):
    """One of two values is chosen, both are computed."""

    condition: Expression
    true_value: Expression
    false_value: Expression

    @init_property
    def ty(self) -> PrimType:
        """The type is that of its values."""
        return self.true_value.ty


@_node
class Op(Object):
    """A call names this intrinsic function."""

    name: str


@_node
class Call(Expression):
    """A call runs ``exp`` or the like."""

    op: Any
    args: Any

    @init_property
    def ty(self) -> PrimType:
        """The type is that of its last argument."""
        return self.args[-1].ty


def call(name: str, *args: Expression) -> Call:
    """Make a call whose result has the type of its last argument."""
    return Call(Op(name), list(args))


@_node
class BufferStore(Object):
    """The statement is ``buffer[indices] = value``."""

    buffer: Any
    value: Any
    indices: Any


@cache
def _zero() -> IntImm:
    return IntImm(0)


@_node
class For(Object):
    """This is a serial loop from zero."""

    loop_var: Any
    extent: Any
    body: Any
    kind: int = 0
    min: Any = field(default_factory=lambda: _zero())


@_node
class AllocBuffer(Object):
    """The program has this scratch memory."""

    buffer: Any


@_node
class SeqStmt(Object):
    """Statements run one after the other."""

    seq: Any


@_node
class LoopProgram(Object):
    """A function has tensors and statements."""

    params: Any
    body: Any


def _expression(value: Any, element: str = "int64") -> Expression:
    if isinstance(value, Expression):
        return value
    return number(value, element) if "float" in element else IntImm(int(value))


def number(value: float, element: str) -> FloatImm:
    """Make a constant of the float type ``element``."""
    return FloatImm(float(value), prim_type(element))


def store(target: Buffer, indices: Sequence[Any], value: Any) -> BufferStore:
    """Make ``target[indices] = value``; a number takes the buffer's type."""
    return BufferStore(target, _expression(value, target.element), [_expression(index) for index in indices])


def nest(variables: Sequence[Var], extents: Sequence[IntImm | int], *body: Object) -> For:
    """Make loops around what follows, the first outermost."""
    inner: Object = body[0] if len(body) == 1 else SeqStmt(list(body))
    for variable, extent in zip(reversed(variables), reversed(extents), strict=True):
        inner = For(variable, _expression(extent), inner)
    assert isinstance(inner, For)
    return inner
