"""The gate for everything that becomes IR here: JSON graphs, schedule traces, and the modules made of them.

What TVM restores from a file of somebody else must hold tensor programs and nothing else (docs/security.md). Text goes
through ``script_check`` first.
"""

from __future__ import annotations

import json
from typing import Any

import tvm
import tvm_ffi

from cdmpp.errors import UnsupportedProgramError
from cdmpp.programs.language import is_attribute_key, is_operation, is_text, texts_in

MAX_DEPTH = 1000
"""Nested nodes of a graph; TVM recurses over them on the stack. Real programs have up to 100."""
_MAX_NODES = 2_000_000
"""Most nodes of a graph, every shared one counted as often as it is met, as TVM's passes do.

Real workloads have some ten thousand.
"""

_PLAIN = {"None", "bool", "int", "float", "dtype", "DataType", "ffi.String"}
_ROOMS = {
    "ffi": "Array Map List Dict Shape",
    "ir": """Call DictAttrs FloatImm FuncType GlobalVar IRModule IntImm Op PointerType PrimType Range SequentialSpan
    SourceMap SourceName Span StringImm StringType TensorLoad TensorRegion Tuple TupleGetItem TupleType Type Var""",
    "prim": """Add And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Broadcast Cast Div EQ FloorDiv FloorMod GE GT LE
    LShift LT Let Max Min Mod Mul NE Not Or RShift Ramp Select Shuffle Sub""",
    "relax": "ShapeType expr.ShapeExpr TensorType FuncType ObjectType",
    "s_tir": "SBlock SBlockRealize MatchBufferRegion",
    "tirx": """AllocBuffer AssertStmt AttrStmt Bind BufferRegionType BufferStore BufferType DeclBuffer Evaluate For
    IfThenElse IndexMap IterVar PrimFunc SeqStmt While""",
}
_NODES = _PLAIN | {f"{room}.{name}" for room, names in _ROOMS.items() for name in names.split()}

_NUMBERS = set("line column end_line end_column data_alignment offset_factor kind iter_type ndim".split())
"""Fields that hold a number itself and not the index of a node."""


def load_graph(text: str, where: str) -> tvm.IRModule:
    """Load a module from the JSON graph that ``tvm.ir.save_json`` makes.

    Raises:
        UnsupportedProgramError: not such a graph, a node that is no part of a tensor program, or one that TVM cannot
            restore; ``where`` begins the message.
    """
    try:
        graph = json.loads(text)
        check_graph(graph, where)
        module = tvm.ir.load_json(text)
    except UnsupportedProgramError:
        raise
    except Exception as error:  # TVM raises several types for a graph it cannot restore
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UnsupportedProgramError(f"{where}: cannot restore the workload: {reason}") from error
    check_module(module, where)
    return module


def check_graph(graph: Any, where: str) -> None:
    """Raise ``UnsupportedProgramError`` for a JSON graph that could restore more than a tensor program."""
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    if not isinstance(nodes, list) or len(nodes) > _MAX_NODES or set(graph) - {"root_index", "nodes", "metadata"}:
        raise UnsupportedProgramError(f"{where}: not a JSON graph as tvm.ir.save_json writes it")
    depths: list[int] = []
    sizes: list[int] = []
    for number, node in enumerate(nodes):
        kind, data = (str(node.get("type")), node.get("data")) if isinstance(node, dict) else ("", None)
        if kind not in _NODES:
            raise UnsupportedProgramError(f"{where}: node {number} is of type {kind}: no part of a tensor program")
        for text in () if kind == "ir.SourceName" else texts_in(data):  # files are named in remarks only
            if not is_text(text):
                raise UnsupportedProgramError(f"{where}: node {number} holds {text[:60]!r}: texts are plain words")
        below = [] if kind in _PLAIN else _references(data)
        if any(not 0 <= index < number for index in below):  # a circle would have no end
            raise UnsupportedProgramError(f"{where}: node {number} refers to one that does not come before it")
        depths.append(1 + max((depths[index] for index in below), default=0))
        sizes.append(1 + sum(sizes[index] for index in below))
        if sizes[-1] > _MAX_NODES:
            raise UnsupportedProgramError(f"{where}: node {number} stands for more than {_MAX_NODES:,} nodes")
    if max(depths, default=0) > MAX_DEPTH:
        raise UnsupportedProgramError(f"{where}: nested {max(depths)} deep, at most {MAX_DEPTH} are read")


def _references(data: Any) -> list[int]:
    if isinstance(data, dict):
        data = [value for name, value in data.items() if name not in _NUMBERS]
    return [value for value in data if type(value) is int] if isinstance(data, list) else []


def check_module(module: Any, where: str) -> None:
    """Raise ``UnsupportedProgramError`` unless ``module`` holds only PrimFuncs that call only known operations."""
    if not isinstance(module, tvm.IRModule) or not module.functions:
        raise UnsupportedProgramError(f"{where}: not a module with a PrimFunc")
    for name, function in module.functions.items():
        if not isinstance(function, tvm.tirx.PrimFunc):
            raise UnsupportedProgramError(f"{where}: {name.name_hint} is not a PrimFunc")
        for call in nodes_of(function.body, tvm.ir.Call):
            operation = getattr(call.op, "name", None) or type(call.op).__name__
            if not is_operation(str(operation)):
                raise UnsupportedProgramError(f"{where}: calls {operation}, which no tensor program needs")
        keys = list(function.attrs.keys()) if function.attrs is not None else []
        keys += [node.attr_key for node in nodes_of(function.body, tvm.tirx.AttrStmt)]
        annotated = [*nodes_of(function.body, tvm.tirx.For), *nodes_of(function.body, tvm.s_tir.SBlock)]
        keys += [key for node in annotated for key in node.annotations]
        for key in keys:
            if not is_attribute_key(str(key)):
                raise UnsupportedProgramError(f"{where}: the attribute {str(key)[:60]!r} is not known here")


def nodes_of(root: Any, kind: type) -> list[Any]:
    """Yield the nodes of one type in the IR below ``root``, in program order."""
    nodes: list[Any] = []
    tvm_ffi.structural_walk(root, (kind, nodes.append), order="pre")
    return nodes


def _check_decisions(instructions: list[Any], decisions: list[Any], where: str) -> None:
    """Raise for one that belongs to no instruction: TVM writes each to the place that it names, unchecked."""
    for decision in decisions:
        if not isinstance(decision, list) or len(decision) != 2 or type(decision[0]) is not int:
            raise UnsupportedProgramError(f"{where}: a decision is [number of its instruction, value]")
        if not 0 <= decision[0] < len(instructions):
            raise UnsupportedProgramError(
                f"{where}: a decision is of instruction {decision[0]}, but there are {len(instructions)} instructions"
            )


def check_trace(trace: Any, where: str) -> None:
    """Raise ``UnsupportedProgramError`` for a schedule trace that names more than steps, blocks and annotations."""
    if not isinstance(trace, list) or len(trace) != 2 or not all(isinstance(part, list) for part in trace):
        raise UnsupportedProgramError(f"{where}: a schedule is [instructions, decisions]")
    _check_decisions(trace[0], trace[1], where)
    for instruction in trace[0]:
        if not isinstance(instruction, list) or len(instruction) != 4 or not isinstance(instruction[0], str):
            raise UnsupportedProgramError(f"{where}: an instruction is [name, inputs, attributes, outputs]")
        name, _, attributes, _ = instruction
        if name in ("Annotate", "Unannotate"):
            key = attributes[0] if isinstance(attributes, list) and attributes else None
            if not isinstance(key, str) or not is_attribute_key(key):
                raise UnsupportedProgramError(f"{where}: {name} of {str(key)[:60]!r}, which is not known here")
        for text in texts_in(instruction):
            if text.startswith("{"):
                try:
                    graph = json.loads(text)
                except (ValueError, RecursionError) as error:
                    raise UnsupportedProgramError(f"{where}: {text[:60]!r} is not a JSON graph") from error
                check_graph(graph, f"{where}, {name}")
            elif not is_text(text.removeprefix('"').removesuffix('"')):
                raise UnsupportedProgramError(f"{where}: {name} holds {text[:60]!r}: texts are plain words")
