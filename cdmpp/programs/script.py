"""TVMScript text -> programs. A file is never run; TVM's parser evaluates expressions, so names are checked first."""

from __future__ import annotations

import ast
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import tvm
from tvm.script.parser.core.entry import _default_globals

from cdmpp.errors import UnsupportedProgramError
from cdmpp.programs.task import Program

# Builtins that reach beyond the expression they stand in; the others (min, range, filter ...) may also name a buffer.
_FOREIGN = set("breakpoint compile delattr eval exec exit getattr globals help locals object open quit setattr".split())
_FOREIGN |= set("super type vars memoryview".split())
_WITHHELD = {"tvm", "TypeVar"}  # the parser's own globals that lead out of the script language


def read_script(path: Path, target: Any) -> list[Program]:
    """The programs of a TVMScript file: one per PrimFunc of each ``@I.ir_module`` class or free ``@T.prim_func``.

    Other statements of the file (a main block, say) are ignored.

    Raises:
        UnsupportedProgramError: not Python text, no PrimFunc in it, a name that TVMScript has no use for, or a
            function that TVM cannot parse; the message names the file and, where known, the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
        raise UnsupportedProgramError(f"{path}: not a readable Python file: {error}") from error
    names = _names(tree)
    parts = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.decorator_list]
    programs = [program for node in parts for program in _parse(path, text, node, names, target)]
    if not programs:
        raise UnsupportedProgramError(f"{path}: no @T.prim_func in it, neither free nor in an @I.ir_module class")
    return programs


def parse_text(text: str, where: str) -> Any:
    """TVMScript text of one module or function -> TVM object, its names checked first.

    For text from elsewhere (records of others): TVM's parser alone would run what stands in it.

    Raises:
        UnsupportedProgramError: as ``read_script``; ``where`` begins the message.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise UnsupportedProgramError(f"{where}: not Python text: {error}") from error
    names = _names(tree)
    check_script(tree, names, where)
    return _parsed(text, names, where)


def check_script(tree: ast.AST, names: dict[str, Any], where: str) -> None:
    """Refuse text that could do more than describe a program, before TVM's parser evaluates it.

    Raises:
        UnsupportedProgramError: an underscored or foreign name, an import, or a way out of TVM's script modules.
    """
    for node in ast.walk(tree):
        refused = ""
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal):
            refused = "an import or global statement"
        elif isinstance(node, ast.Name) and _is_foreign(node.id, names):
            refused = node.id
        elif isinstance(node, ast.Attribute) and (node.attr.startswith("_") or _leads_out(node, names)):
            refused = ast.unparse(node)
        elif isinstance(node, ast.arg) and isinstance(node.annotation, ast.Constant):
            refused = "an annotation in quotes"
        if refused:
            raise UnsupportedProgramError(f"{where}, line {getattr(node, 'lineno', '?')}: {refused} is not TVMScript")


def _names(tree: ast.Module) -> dict[str, Any]:
    """What the script language offers, also under the names that the file imports it by."""
    offered = {name: value for name, value in _default_globals().items() if name not in _WITHHELD}
    aliases: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tvm.script"):
            aliases |= {alias.asname or alias.name: offered.get(alias.name) for alias in node.names}
    return offered | {name: value for name, value in aliases.items() if value is not None}


def _is_foreign(name: str, names: dict[str, Any]) -> bool:
    return name not in names and (name.startswith("__") or name in _FOREIGN)


def _leads_out(node: ast.Attribute, names: dict[str, Any]) -> bool:
    """Whether ``T.a.b`` ends at a module outside TVM (script modules see their own imports as attributes)."""
    chain = [node.attr]
    base: ast.expr = node.value
    while isinstance(base, ast.Attribute):
        chain.append(base.attr)
        base = base.value
    if not isinstance(base, ast.Name) or base.id not in names:
        return False
    found = reduce(lambda value, name: getattr(value, name, None), reversed(chain), names[base.id])
    return isinstance(found, ModuleType) and not found.__name__.startswith("tvm.")


def _parsed(text: str, names: dict[str, Any], where: str) -> Any:
    try:
        return tvm.script.parse(text, extra_vars=dict(names))
    except Exception as error:  # the parser raises whatever the text makes it meet
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if ".sblock(" in text and "s_tir=True" not in text:
            reason = f"a function with T.sblock is declared by @T.prim_func(s_tir=True), this text does not; {reason}"
        raise UnsupportedProgramError(f"{where} does not parse as TVMScript: {reason}") from error


def _parse(
    path: Path, text: str, node: ast.ClassDef | ast.FunctionDef, names: dict[str, Any], target: Any
) -> list[Program]:
    where = f"{path}: {node.name}"
    check_script(node, names, where)
    first = min(decorator.lineno for decorator in node.decorator_list)
    source = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    parsed = _parsed(source, names, f"{where} (line {node.lineno})")
    module = parsed if isinstance(parsed, tvm.IRModule) else tvm.IRModule({node.name: parsed})
    functions = {var.name_hint: f for var, f in module.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
    prefix = f"{node.name}." if isinstance(node, ast.ClassDef) and len(functions) > 1 else ""
    return [
        Program(tvm.IRModule({"main": f.with_attr("global_symbol", "main")}), target, name=f"{prefix}{name}")
        for name, f in functions.items()
    ]
