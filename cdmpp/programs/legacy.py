"""Databases tuned with TVM 0.16 to 0.20: their workload graphs as TVMScript of 0.27, their traces renamed.

A legacy workload is a JSON list of nodes that refer to each other by index; attributes are strings. The writer
below visits it from the root and prints TVMScript, which TVM 0.27 parses back into the same program.
"""

from __future__ import annotations

import builtins
import itertools
import json
import keyword
import re
from collections.abc import Iterable, Iterator
from typing import Any

from cdmpp.errors import DataError

_OPERATORS = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "FloorDiv": "//", "FloorMod": "%"}
_OPERATORS |= {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_FUNCTIONS = {"Min": "T.min", "Max": "T.max", "And": "T.And", "Or": "T.Or", "Mod": "T.truncmod", "Not": "T.Not"}
_LOOP_KINDS = ("serial", "parallel", "vectorized", "unroll")
_AXIS_KINDS = {"0": "spatial", "1": "scan", "2": "reduce", "4": "opaque"}
_VALUES = {"dtype", "kind", "iter_type"}
"""Attributes that hold a value and not the index of a node."""


def convert_trace(trace: list[Any]) -> list[Any]:
    """Spell ``[instructions, decisions]`` of a legacy trace as TVM 0.27 does; newer ones stay as they are."""
    instructions, decisions = trace
    converted = []
    for name, inputs, attributes, outputs in instructions:
        if name == "Split" and len(attributes) == 1:  # it never left out predicates
            attributes = [attributes[0], 0]
        converted.append(["GetSBlock" if name == "GetBlock" else name, inputs, attributes, outputs])
    return [converted, decisions]


def legacy_to_script(text: str) -> str:
    """Turn a workload graph (JSON) into TVMScript with a ``main``; ``DataError`` names an unknown node kind."""
    try:
        graph = json.loads(text)
        return _Writer(graph["nodes"]).module(_Node(graph["nodes"], graph["root"]))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"not a legacy workload graph: {type(error).__name__} {error}") from error


class _Node:
    """A node of the graph; ``node.name`` is what its attribute ``name`` holds, iterating yields its items."""

    def __init__(self, nodes: list[dict[str, Any]], index: str | int) -> None:
        self.nodes, self.index = nodes, int(index)
        self.content = nodes[self.index]
        self.type = self.content["type_key"].removeprefix("tir.")
        self.text = self.content.get("repr_str", "")

    def __getattr__(self, name: str) -> Any:
        """A node, or the text of a plain value; the node 0, which is empty, where there is no such attribute."""
        value = self.content.get("attrs", {}).get(name, "0")
        return value if name in _VALUES or self.type in ("IntImm", "FloatImm") else _Node(self.nodes, value)

    def __bool__(self) -> bool:
        return self.index != 0

    def __iter__(self) -> Iterator[_Node]:
        return (_Node(self.nodes, index) for index in self.content.get("data", []))

    def is_number(self, value: int) -> bool:
        return self.type == "IntImm" and self.value == str(value)

    def pairs(self) -> list[tuple[str, _Node]]:
        return list(zip(self.content.get("keys", []), self, strict=True))


class _Writer:
    """Prints nodes. ``self.lines`` collects statements; expressions come back as text."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self.nodes = nodes
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.taken = {"T", "I", "main", *keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
        self.constants: list[_Node] = []

    def name(self, node: _Node) -> str:
        """Return a Python identifier for a variable or buffer, unique in the function."""
        if node.index not in self.names:
            base = re.sub(r"\W", "_", node.name.text) or "v"
            base = f"v_{base}" if base[0].isdigit() else base
            names = itertools.chain([base], (f"{base}_{count}" for count in itertools.count(1)))
            name = next(name for name in names if name not in self.taken)
            self.taken.add(name)
            self.names[node.index] = name
        return self.names[node.index]

    def expr(self, node: _Node) -> str:
        match node.type:
            case "IntImm":
                special = {"bool": f"T.bool({node.value != '0'})", "int32": f"({node.value})"}
                return special.get(node.dtype, f"T.{node.dtype}({node.value})")
            case "FloatImm":
                special_value = re.search("inf|nan", node.value)
                return f"T.{node.dtype}({json.dumps(node.value) if special_value else float(node.value)!r})"
            case "Var" | "SizeVar":
                return self.name(node)
            case kind if kind in _OPERATORS:
                return f"({self.expr(node.a)} {_OPERATORS[kind]} {self.expr(node.b)})"
            case kind if kind in _FUNCTIONS:
                return f"{_FUNCTIONS[kind]}({self.listed(filter(None, (node.a, node.b)))})"
            case "Select":
                return f"T.Select({self.listed((node.condition, node.true_value, node.false_value))})"
            case "Cast":
                return f"T.Cast({json.dumps(node.dtype)}, {self.expr(node.value)})"
            case "BufferLoad":
                return self.element(node)
            case "Call":
                operation = node.op.text.removeprefix("tir.")
                dtype = f"{json.dumps(node.dtype)}, " if operation == "reinterpret" else ""
                return f"T.{operation}({dtype}{self.listed(node.args)})"
        raise DataError(f"no TVMScript for the expression kind {node.type}: this workload cannot be converted")

    def listed(self, nodes: Iterable[_Node]) -> str:
        return ", ".join(map(self.expr, nodes))

    def element(self, node: _Node) -> str:
        return f"{self.name(node.buffer)}[{self.listed(node.indices) or '()'}]"

    def region(self, node: _Node) -> str:
        spans = [(self.expr(span.min), span.extent) for span in node.region]
        parts = [low if size.is_number(1) else f"{low}:{low} + {self.expr(size)}" for low, size in spans]
        return f"{self.name(node.buffer)}[{', '.join(parts) or '()'}]"

    def annotation(self, node: _Node) -> str:
        if node.type == "runtime.String":
            return json.dumps(node.text)
        if node.type == "Array":
            return f"[{', '.join(map(self.annotation, node))}]"
        if node.type == "IntImm" and node.dtype == "bool":
            return str(node.value != "0")
        return self.expr(node)

    def annotations(self, node: _Node) -> str:
        return "{" + ", ".join(f"{json.dumps(key)}: {self.annotation(value)}" for key, value in node.pairs()) + "}"

    def shape(self, buffer: _Node) -> str:
        return f"({''.join(self.expr(extent) + ', ' for extent in buffer.shape)}), {json.dumps(buffer.dtype)}"

    def parameter(self, buffer: _Node) -> str:
        return f"{self.name(buffer)}: T.Buffer({self.shape(buffer)})"

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def statement(self, node: _Node, depth: int) -> None:
        match node.type:
            case "SeqStmt":
                for item in node.seq:
                    self.statement(item, depth)
            case "For":
                start, extent = self.expr(node.min), self.expr(node.extent)
                bounds = extent if node.min.is_number(0) else f"{start}, {start} + {extent}"
                notes = f", annotations={self.annotations(node.annotations)}" if node.annotations.pairs() else ""
                self.line(depth, f"for {self.name(node.loop_var)} in T.{_LOOP_KINDS[int(node.kind)]}({bounds}{notes}):")
                self.statement(node.body, depth + 1)
            case "BlockRealize":
                self.block(node, depth)
            case "BufferStore":
                self.line(depth, f"{self.element(node)} = {self.expr(node.value)}")
            case "IfThenElse":
                self.line(depth, f"if {self.expr(node.condition)}:")
                self.statement(node.then_case, depth + 1)
                if node.else_case:
                    self.line(depth, "else:")
                    self.statement(node.else_case, depth + 1)
            case "Evaluate":
                self.line(depth, f"T.evaluate({self.expr(node.value)})")
            case "AllocateConst":  # its buffers become parameters: the values do not matter here
                buffers = (_Node(self.nodes, i) for i, n in enumerate(self.nodes) if n["type_key"] == "tir.Buffer")
                self.constants += [buffer for buffer in buffers if buffer.data.index == node.buffer_var.index]
                self.statement(node.body, depth)
            case "DeclBuffer":
                self.statement(node.body, depth)
            case _:
                raise DataError(f"no TVMScript for the statement kind {node.type}: this workload cannot be converted")

    def block(self, realize: _Node, depth: int) -> None:
        block = realize.block
        self.line(depth, f"with T.sblock({json.dumps(block.name_hint.text)}):")
        depth += 1
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True):
            kind, extent = _AXIS_KINDS[axis.iter_type], self.expr(axis.dom.extent)
            self.line(depth, f"{self.name(axis.var)} = T.axis.{kind}({extent}, {self.expr(value)})")
        if (predicate := self.expr(realize.predicate)) != "T.bool(True)":
            self.line(depth, f"T.where({predicate})")
        self.line(depth, f"T.reads({', '.join(map(self.region, block.reads))})")
        self.line(depth, f"T.writes({', '.join(map(self.region, block.writes))})")
        self.block_body(block, depth)

    def block_body(self, block: _Node, depth: int) -> None:
        if block.annotations.pairs():
            self.line(depth, f"T.sblock_attr({self.annotations(block.annotations)})")
        for buffer in block.alloc_buffers:
            self.line(depth, f"{self.name(buffer)} = T.sblock_alloc_buffer({self.shape(buffer)})")
        if block.init:
            self.line(depth, "with T.init():")
            self.statement(block.init, depth + 1)
        self.statement(block.body, depth)

    def module(self, root: _Node) -> str:
        if len(functions := list(root.functions)) != 2:
            raise DataError(f"a workload has one function, this one has {len(functions) // 2}")
        function = functions[1]
        pairs = iter(function.buffer_map)
        buffers = {variable.index: buffer for variable, buffer in zip(pairs, pairs, strict=True)}
        parameters = [
            self.parameter(buffers[p.index]) if p.index in buffers else f"{self.name(p)}: T.handle"
            for p in function.params
        ]
        # Other attributes (``layout_free_buffers``) only steered the tuner; what it did with them stands in the trace.
        for value in (v for key, v in function.attrs.__getattr__("__dict__").pairs() if key == "tir.noalias"):
            self.line(2, f'T.func_attr({{"tirx.noalias": {self.annotation(value)}}})')
        self.block_body(function.body.block, 2)
        parameters[-1:-1] = map(self.parameter, self.constants)  # what is written comes last
        head = ["@I.ir_module", "class Module:", "    @T.prim_func(s_tir=True)"]
        return "\n".join([*head, f"    def main({', '.join(parameters)}):", *self.lines]) + "\n"
