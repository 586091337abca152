"""TVMScript text -> programs. Only text made of a checked syntax tree reaches TVM's parser, which evaluates it."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tvm
from tvm.script.parser import ir as ir_room
from tvm.script.parser import tirx as tirx_room

from cdmpp.errors import UnsupportedProgramError
from cdmpp.programs.gate import check_module
from cdmpp.programs.script_check import aliases_and_constants, checked_text
from cdmpp.programs.task import Program


def _declared(*_: Any, **__: Any) -> Any:
    return _declared


# For text, TVM only asks the decorator which parser is to read the function. Its own looks at the source files of all
# callers meanwhile, a fifth of the time of parsing.
_declared.dispatch_token = "tirx"  # type: ignore[attr-defined]
_TIRX_ROOM = SimpleNamespace(**{**vars(tirx_room), "prim_func": _declared})


def read_script(path: Path, target: Any) -> list[Program]:
    """Read programs of a TVMScript file: one per PrimFunc of each ``@I.ir_module`` class or free ``@T.prim_func``.

    Plain numbers and strings that the file gives a name are put in their place. Other statements (a main block, say)
    are ignored.

    Raises:
        UnsupportedProgramError: not Python text, no PrimFunc in it, anything but TVMScript in a PrimFunc, or one that
            TVM cannot parse; the message names the file and, where known, the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UnsupportedProgramError(f"{path}: not a readable Python file: {error}") from error
    tree = _tree(text, str(path))
    meanings = aliases_and_constants(tree.body)
    parts = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.decorator_list]
    programs = [program for node in parts for program in _programs(path, node, meanings, target)]
    if not programs:
        raise UnsupportedProgramError(f"{path}: no @T.prim_func in it, neither free nor in an @I.ir_module class")
    return programs


def parse_text(text: str, where: str) -> tvm.IRModule:
    """Parse TVMScript of one module, or of one function as ``main``. For text from elsewhere, records of others say.

    Errors as ``read_script``; ``where`` begins the message.
    """
    tree = _tree(text, where)
    parts = [node for node in tree.body if not isinstance(node, ast.ImportFrom)]
    if len(parts) != 1:
        raise UnsupportedProgramError(f"{where}: one function or module class is wanted, {len(parts)} statements given")
    return _parsed(checked_text(parts[0], aliases_and_constants(tree.body), where), where)


def _tree(text: str, where: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (RecursionError, MemoryError) as error:
        raise UnsupportedProgramError(f"{where}: nested too deep to read; give parts of long sums a name") from error
    except (SyntaxError, ValueError) as error:
        raise UnsupportedProgramError(f"{where}: not Python text: {error}") from error


def _parsed(text: str, where: str, name: str = "main") -> tvm.IRModule:
    """``text`` as ``checked_text`` gives it; ``name`` is that of a function without module."""
    try:
        parsed = tvm.script.parse(text, extra_vars={"T": _TIRX_ROOM, "I": ir_room})
    except RecursionError as error:
        raise UnsupportedProgramError(
            f"{where}: nested too deep for TVM's parser; give parts of long expressions a name"
        ) from error
    except Exception as error:  # the parser raises whatever the text makes it meet
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if ".sblock(" in text and "s_tir=True" not in text:
            reason = f"a function with T.sblock is declared by @T.prim_func(s_tir=True), this text does not; {reason}"
        raise UnsupportedProgramError(f"{where} does not parse as TVMScript: {reason}") from error
    module = parsed if isinstance(parsed, tvm.IRModule) else tvm.IRModule({name: parsed})
    check_module(module, where)
    return module


def _programs(
    path: Path, node: ast.ClassDef | ast.FunctionDef, meanings: dict[str, ast.expr], target: Any
) -> list[Program]:
    where = f"{path}: {node.name}"
    module = _parsed(checked_text(node, meanings, where), f"{where} (line {node.lineno})", node.name)
    functions = {var.name_hint: f for var, f in module.functions.items()}
    prefix = f"{node.name}." if isinstance(node, ast.ClassDef) and len(functions) > 1 else ""
    return [
        Program(tvm.IRModule({"main": f.with_attr("global_symbol", "main")}), target, name=f"{prefix}{name}")
        for name, f in functions.items()
    ]
