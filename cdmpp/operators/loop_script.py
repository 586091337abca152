"""Loop programs as TVMScript: the text that TVM reads them from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdmpp.operators.loops import (
    AllocBuffer,
    Binary,
    Buffer,
    BufferStore,
    Call,
    Expression,
    FloatImm,
    For,
    IntImm,
    LoopProgram,
    Select,
    SeqStmt,
    TensorLoad,
    Var,
)


def script(program: LoopProgram) -> str:
    """Write TVMScript of a module with this one function."""
    buffers = [f'{b.name}: T.Buffer({_shape(b)}, "{b.element}")' for b in program.params]
    head = ["from tvm.script import ir as I", "from tvm.script import tirx as T", "", "@I.ir_module", "class Module:"]
    head += ["    @T.prim_func", f"    def main({', '.join(buffers)}):"]
    return "\n".join([*head, *_lines(program.body, 8), ""])


def _lines(node: Any, indent: int) -> list[str]:
    blank = " " * indent
    if isinstance(node, SeqStmt):
        return [line for part in node.seq for line in _lines(part, indent)]
    if isinstance(node, AllocBuffer):
        b = node.buffer
        return [f'{blank}{b.name} = T.alloc_buffer({_shape(b)}, "{b.element}")']
    if isinstance(node, For):
        return [f"{blank}for {node.loop_var.name} in range({node.extent.value}):", *_lines(node.body, indent + 4)]
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
        return f"T.{e.element}({e.value!r})"
    if isinstance(e, TensorLoad):
        return f"{e.source.name}[{_places(e.indices)}]"
    if isinstance(e, Call):
        return f"T.{e.op.name}({_places(e.args)})"
    if isinstance(e, Select):
        return f"T.Select({_places([e.condition, e.true_value, e.false_value])})"
    assert isinstance(e, Binary)
    if e.sign.startswith("T."):
        return f"{e.sign}({_text(e.a)}, {_text(e.b)})"
    return f"({_text(e.a)} {e.sign} {_text(e.b)})"
