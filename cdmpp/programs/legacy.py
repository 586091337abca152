"""Databases tuned with TVM 0.16 to 0.20: their workload graphs as TVMScript of 0.27, their traces renamed.

A legacy workload is a JSON list of nodes that refer to each other by index; attributes are strings. The writer
below visits it from the root and prints TVMScript, which TVM 0.27 parses back into the same program.
"""

from __future__ import annotations

import builtins
import json
import keyword
import re
from collections.abc import Callable
from typing import Any

from cdmpp.errors import DataError

_OPERATORS = dict(
    zip(
        "Add Sub Mul Div FloorDiv FloorMod EQ NE LT LE GT GE".split(),
        "+ - * / // % == != < <= > >=".split(),
        strict=True,
    )
)
_FUNCTIONS = {"Min": "T.min", "Max": "T.max", "And": "T.And", "Or": "T.Or", "Mod": "T.truncmod", "Not": "T.Not"}
_LOOP_KINDS = ("serial", "parallel", "vectorized", "unroll")
_AXIS_KINDS = {0: "spatial", 1: "scan", 2: "reduce", 4: "opaque"}
# Others (``layout_free_buffers``) only steered the tuner; what it did with them stands in the trace.
_FUNCTION_ATTRIBUTES = {"tir.noalias": "tirx.noalias"}
_INSTRUCTIONS = {"GetBlock": "GetSBlock"}


def is_legacy_graph(text: str) -> bool:
    """Whether a workload graph is of the format before TVM 0.21 (nodes carry ``type_key``)."""
    return '"type_key"' in text[:4000]


def convert_trace(trace: list[Any]) -> list[Any]:
    """``[instructions, decisions]`` of a legacy trace in the spelling of TVM 0.27; newer ones stay as they are.

    Blocks were renamed (``GetBlock``), and ``Split`` learned to leave out predicates, which it never did before.
    """
    instructions, decisions = trace
    converted = []
    for name, inputs, attributes, outputs in instructions:
        if name == "Split" and len(attributes) == 1:
            attributes = [attributes[0], 0]
        converted.append([_INSTRUCTIONS.get(name, name), inputs, attributes, outputs])
    return [converted, decisions]


def legacy_to_script(text: str) -> str:
    """Workload graph (JSON) -> TVMScript of an IRModule with one function ``main``.

    Raises ``DataError`` that names the node kind where the graph holds something this writer does not know.
    """
    try:
        graph = json.loads(text)
        return _Writer(graph["nodes"]).module(int(graph["root"]))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"not a legacy workload graph: {type(error).__name__} {error}") from error


class _Writer:
    """Prints nodes. ``self.lines`` collects statements; expressions come back as text."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self.nodes = nodes
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.taken = {"T", "I", "main", *keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
        self.constants: list[int] = []
        self.statements: dict[str, Callable[[dict[str, Any], int], None]] = {
            "tir.SeqStmt": self._sequence,
            "tir.For": self._loop,
            "tir.BlockRealize": self._block_realize,
            "tir.BufferStore": self._store,
            "tir.IfThenElse": self._branch,
            "tir.Evaluate": self._evaluate,
            "tir.AllocateConst": self._constant,
            "tir.DeclBuffer": lambda attrs, depth: self.statement(attrs["body"], depth),
        }

    # Access to the graph.

    def kind(self, index: str | int) -> str:
        return self.nodes[int(index)]["type_key"]

    def attrs(self, index: str | int) -> dict[str, Any]:
        return self.nodes[int(index)].get("attrs", {})

    def items(self, index: str | int) -> list[int]:
        return self.nodes[int(index)].get("data", [])

    def pairs(self, index: str | int) -> list[tuple[str, int]]:
        """String-keyed map: the keys stand beside the values."""
        node = self.nodes[int(index)]
        return list(zip(node.get("keys", []), node.get("data", []), strict=True))

    def string(self, index: str | int) -> str:
        return self.nodes[int(index)].get("repr_str", "")

    def name(self, index: str | int) -> str:
        """A Python identifier for a variable or buffer, unique in the function."""
        index = int(index)
        if index not in self.names:
            base = re.sub(r"\W", "_", self.string(self.attrs(index)["name"])) or "v"
            base = f"v_{base}" if base[0].isdigit() else base
            name, count = base, 0
            while name in self.taken:
                count += 1
                name = f"{base}_{count}"
            self.taken.add(name)
            self.names[index] = name
        return self.names[index]

    # Expressions.

    def expr(self, index: str | int) -> str:
        kind, attrs = self.kind(index), self.attrs(index)
        short = kind.removeprefix("tir.")
        if kind == "IntImm":
            return self._integer(attrs)
        if kind == "FloatImm":
            value = attrs["value"]
            literal = f'"{value}"' if re.search("inf|nan", value) else repr(float(value))
            return f"T.{attrs['dtype']}({literal})"
        if short in ("Var", "SizeVar"):
            return self.name(index)
        if short in _OPERATORS:
            return f"({self.expr(attrs['a'])} {_OPERATORS[short]} {self.expr(attrs['b'])})"
        if short in _FUNCTIONS:
            return f"{_FUNCTIONS[short]}({', '.join(self.expr(attrs[key]) for key in 'ab' if key in attrs)})"
        if short == "Select":
            parts = (attrs[key] for key in ("condition", "true_value", "false_value"))
            return f"T.Select({', '.join(map(self.expr, parts))})"
        if short == "Cast":
            return f"T.Cast({json.dumps(attrs['dtype'])}, {self.expr(attrs['value'])})"
        if short == "BufferLoad":
            return f"{self.name(attrs['buffer'])}[{self._subscript(attrs['indices'])}]"
        if short == "Call":
            return self._call(attrs)
        raise DataError(f"no TVMScript for the expression kind {kind}: this workload cannot be converted")

    def _integer(self, attrs: dict[str, Any]) -> str:
        value, dtype = attrs["value"], attrs["dtype"]
        if dtype == "bool":
            return f"T.bool({value != '0'})"
        if dtype == "int32":
            return f"({value})" if value.startswith("-") else value
        return f"T.{dtype}({value})"

    def _call(self, attrs: dict[str, Any]) -> str:
        op = self.string(attrs["op"]).removeprefix("tir.")
        arguments = ", ".join(map(self.expr, self.items(attrs["args"])))
        if op == "reinterpret":
            return f"T.reinterpret({json.dumps(attrs['dtype'])}, {arguments})"
        return f"T.{op}({arguments})"

    def _subscript(self, indices: str | int) -> str:
        return ", ".join(map(self.expr, self.items(indices))) or "()"

    def _region(self, index: str | int) -> str:
        parts = []
        for item in self.items(self.attrs(index)["region"]):
            span = self.attrs(item)
            start, extent = self.expr(span["min"]), self.attrs(span["extent"])
            single = self.kind(span["extent"]) == "IntImm" and extent["value"] == "1"
            parts.append(start if single else f"{start}:{start} + {self.expr(span['extent'])}")
        return f"{self.name(self.attrs(index)['buffer'])}[{', '.join(parts) or '()'}]"

    def _annotation(self, index: str | int) -> str:
        kind = self.kind(index)
        if kind == "runtime.String":
            return json.dumps(self.string(index))
        if kind == "Array":
            return f"[{', '.join(map(self._annotation, self.items(index)))}]"
        if kind == "IntImm" and self.attrs(index)["dtype"] == "bool":
            return str(self.attrs(index)["value"] != "0")
        return self.expr(index)

    def _annotations(self, index: str | int) -> str:
        return "{" + ", ".join(f"{json.dumps(key)}: {self._annotation(v)}" for key, v in self.pairs(index)) + "}"

    def _shape(self, buffer: str | int) -> str:
        attrs = self.attrs(buffer)
        return f"({''.join(self.expr(e) + ', ' for e in self.items(attrs['shape']))}), {json.dumps(attrs['dtype'])}"

    # Statements.

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def statement(self, index: str | int, depth: int) -> None:
        if (kind := self.kind(index)) not in self.statements:
            raise DataError(f"no TVMScript for the statement kind {kind}: this workload cannot be converted")
        self.statements[kind](self.attrs(index), depth)

    def _sequence(self, attrs: dict[str, Any], depth: int) -> None:
        for item in self.items(attrs["seq"]):
            self.statement(item, depth)

    def _loop(self, attrs: dict[str, Any], depth: int) -> None:
        variable, start, extent = self.name(attrs["loop_var"]), self.expr(attrs["min"]), self.expr(attrs["extent"])
        bounds = extent if self.attrs(attrs["min"]).get("value") == "0" else f"{start}, {start} + {extent}"
        notes = f", annotations={self._annotations(attrs['annotations'])}" if self.pairs(attrs["annotations"]) else ""
        self.line(depth, f"for {variable} in T.{_LOOP_KINDS[int(attrs['kind'])]}({bounds}{notes}):")
        self.statement(attrs["body"], depth + 1)

    def _store(self, attrs: dict[str, Any], depth: int) -> None:
        target = f"{self.name(attrs['buffer'])}[{self._subscript(attrs['indices'])}]"
        self.line(depth, f"{target} = {self.expr(attrs['value'])}")

    def _constant(self, attrs: dict[str, Any], depth: int) -> None:
        """A tensor that the program carries along: its buffers become parameters, its values do not matter here."""
        variable = int(attrs["buffer_var"])
        self.constants += [
            index
            for index, node in enumerate(self.nodes)
            if node["type_key"] == "tir.Buffer" and int(node["attrs"]["data"]) == variable
        ]
        self.statement(attrs["body"], depth)

    def _evaluate(self, attrs: dict[str, Any], depth: int) -> None:
        self.line(depth, f"T.evaluate({self.expr(attrs['value'])})")

    def _branch(self, attrs: dict[str, Any], depth: int) -> None:
        self.line(depth, f"if {self.expr(attrs['condition'])}:")
        self.statement(attrs["then_case"], depth + 1)
        if attrs.get("else_case", "0") != "0":
            self.line(depth, "else:")
            self.statement(attrs["else_case"], depth + 1)

    def _block_realize(self, attrs: dict[str, Any], depth: int) -> None:
        block = self.attrs(attrs["block"])
        self.line(depth, f"with T.sblock({json.dumps(self.string(block['name_hint']))}):")
        depth += 1
        for axis, value in zip(self.items(block["iter_vars"]), self.items(attrs["iter_values"]), strict=True):
            a = self.attrs(axis)
            extent = self.expr(self.attrs(a["dom"])["extent"])
            kind = _AXIS_KINDS[int(a["iter_type"])]
            self.line(depth, f"{self.name(a['var'])} = T.axis.{kind}({extent}, {self.expr(value)})")
        if self.expr(attrs["predicate"]) != "T.bool(True)":
            self.line(depth, f"T.where({self.expr(attrs['predicate'])})")
        self.line(depth, f"T.reads({', '.join(map(self._region, self.items(block['reads'])))})")
        self.line(depth, f"T.writes({', '.join(map(self._region, self.items(block['writes'])))})")
        self._block_body(block, depth)

    def _block_body(self, block: dict[str, Any], depth: int) -> None:
        if self.pairs(block["annotations"]):
            self.line(depth, f"T.sblock_attr({self._annotations(block['annotations'])})")
        for buffer in self.items(block["alloc_buffers"]):
            self.line(depth, f"{self.name(buffer)} = T.sblock_alloc_buffer({self._shape(buffer)})")
        if block["init"] != "0":
            self.line(depth, "with T.init():")
            self.statement(block["init"], depth + 1)
        self.statement(block["body"], depth)

    def module(self, root: int) -> str:
        functions = self.items(self.attrs(root)["functions"])
        if len(functions) != 2:
            raise DataError(f"a workload has one function, this one has {len(functions) // 2}")
        function = self.attrs(functions[1])
        buffers = self.items(function["buffer_map"])
        of_parameter = dict(zip(buffers[::2], buffers[1::2], strict=True))
        parameters = [
            self._parameter(of_parameter[p]) if p in of_parameter else f"{self.name(p)}: T.handle"
            for p in self.items(function["params"])
        ]
        for key, value in self.pairs(self.attrs(function["attrs"])["__dict__"]):
            if key in _FUNCTION_ATTRIBUTES:
                note = f"{json.dumps(_FUNCTION_ATTRIBUTES[key])}: {self._annotation(value)}"
                self.line(2, f"T.func_attr({{{note}}})")
        self._block_body(self.attrs(self.attrs(function["body"])["block"]), 2)
        parameters[-1:-1] = map(self._parameter, self.constants)  # what is written comes last
        head = ["@I.ir_module", "class Module:", "    @T.prim_func(s_tir=True)"]
        return "\n".join([*head, f"    def main({', '.join(parameters)}):", *self.lines]) + "\n"

    def _parameter(self, buffer: int) -> str:
        return f"{self.name(buffer)}: T.Buffer({self._shape(buffer)})"
