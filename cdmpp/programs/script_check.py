"""A whitelist for TVMScript: TVM's parser evaluates what it reads, so it only gets text made of a tree checked here."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable

from cdmpp.errors import UnsupportedProgramError
from cdmpp.programs import language
from cdmpp.programs.script_expression import ExpressionCheck, dotted_name

MAX_DEPTH = 200
"""Nested expressions and statements. TVM recurses over them several frames a level; measured programs have up to 40."""
_PRIM_FUNC_OPTIONS = {"s_tir", "private", "check_well_formed"}
_ROOMS = {"ir": "I", "tirx": "T", "tir": "T"}


def checked_text(node: ast.stmt, meanings: dict[str, ast.expr], where: str) -> str:
    """Return Python text of only the function or module class ``node``, spelled as TVM's parser is given it.

    ``meanings``: ``aliases_and_constants`` of the file it stands in. ``UnsupportedProgramError`` for anything that
    ``cdmpp.programs.language`` does not list; ``where`` begins the message, which names the line.
    """
    tree = ast.Module([node], [])
    if (depth := _depth(tree)) > MAX_DEPTH:
        raise UnsupportedProgramError(
            f"{where}: nested {depth} deep, at most {MAX_DEPTH} are read; give parts of long expressions a name"
        )
    node = _Spelling(meanings).visit(node)
    _Check(where).definition(node)
    tree = ast.fix_missing_locations(ast.Module([node], []))
    text = ast.unparse(tree)
    if ast.dump(ast.parse(text)) != ast.dump(tree):
        raise UnsupportedProgramError(f"{where}: holds something that Python cannot write down again")
    return text


def aliases_and_constants(statements: Iterable[ast.stmt]) -> dict[str, ast.expr]:
    """Return the meaning of each name of a file: ``T`` or ``I`` for TVM's script modules, else a constant."""
    rooms = {**_ROOMS, "T": "T", "I": "I"}
    meanings: dict[str, ast.expr] = {name: ast.Name(room, ast.Load()) for name, room in rooms.items()}
    for node in statements:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tvm.script"):
            for alias in node.names:
                if alias.name in _ROOMS:
                    meanings[alias.asname or alias.name] = ast.Name(_ROOMS[alias.name], ast.Load())
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            try:
                value = ast.literal_eval(node.value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and isinstance(value, bool | int | float | str):
                    meanings.setdefault(target.id, ast.Constant(value))
    return meanings


def _depth(tree: ast.AST) -> int:
    deepest, stack = 0, [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        deepest = max(deepest, depth)
        stack += [(child, depth + 1) for child in ast.iter_child_nodes(node)]
    return deepest


class _Spelling(ast.NodeTransformer):
    """Script rooms under the names ``T`` and ``I``, constants of the file in the place of their names."""

    def __init__(self, meanings: dict[str, ast.expr]):
        self.meanings = meanings

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        own = stored | {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
        return _Spelling({name: v for name, v in self.meanings.items() if name not in own}).generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        meaning = self.meanings.get(node.id) if isinstance(node.ctx, ast.Load) else None
        return node if meaning is None else ast.copy_location(copy.copy(meaning), node)


class _Check(ExpressionCheck):
    """Definitions and statements: every method lets one kind of node through and refuses the rest."""

    def definition(self, node: ast.stmt) -> None:
        """Check a PrimFunc, or a module class of them."""
        match node:
            case ast.FunctionDef():
                self._function(node)
            case ast.ClassDef(_, [], [], body) if not getattr(node, "type_params", None):
                self._decorator(node, "I", "ir_module", {"check_well_formed"})
                for part in body:
                    if isinstance(part, ast.FunctionDef):
                        self._function(part)
                    elif not _is_nothing(part):
                        raise self.refuse(part, hint=": a module class holds @T.prim_func functions alone")
            case _:
                raise self.refuse(node, type(node).__name__, ": a function, or a class without bases, is wanted")

    def _decorator(self, node: ast.FunctionDef | ast.ClassDef, room: str, name: str, options: set[str]) -> None:
        if (count := len(node.decorator_list)) != 1:
            raise self.refuse(node, f"{node.name} with {count} decorators", f": one, @{room}.{name}, is wanted")
        (given,) = node.decorator_list
        call = given if isinstance(given, ast.Call) else ast.Call(given, [], [])
        if call.args or dotted_name(call.func) != f"{room}.{name}":
            raise self.refuse(given, hint=f": @{room}.{name} is wanted here")
        for keyword in call.keywords:
            value = keyword.value
            if keyword.arg not in options or not (isinstance(value, ast.Constant) and isinstance(value.value, bool)):
                raise self.refuse(keyword.value, hint=f": options of @{room}.{name} are {', '.join(sorted(options))}")

    def _function(self, node: ast.FunctionDef) -> None:
        self._decorator(node, "T", "prim_func", _PRIM_FUNC_OPTIONS)
        arguments = node.args
        odd = [arguments.vararg, arguments.kwarg, *arguments.kwonlyargs, *arguments.posonlyargs]
        if any(odd) or arguments.defaults or arguments.kw_defaults or getattr(node, "type_params", None):
            raise self.refuse(node, f"{node.name} with parameters that are not plain buffers or scalars")
        if node.returns is not None and not (isinstance(node.returns, ast.Constant) and node.returns.value is None):
            raise self.refuse(node.returns)
        self.bound = {"T", "I"}
        for parameter in arguments.args:
            if parameter.annotation is None:
                raise self.refuse(parameter, hint=": a parameter needs a type, such as T.Buffer((8,), 'float32')")
            self._annotation(parameter.annotation)
            self._bind(parameter, parameter.arg)
        for child in ast.walk(node):  # a name that is bound further down never means one of Python's own
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                self._bind(child, child.id)
        self._body(node.body)

    def _bind(self, node: ast.AST, name: str) -> None:
        if name in ("T", "I") or name.startswith("__"):
            raise self.refuse(node, f"a variable named {name}")
        self.bound.add(name)

    def _annotation(self, node: ast.expr) -> None:
        """``T.Buffer(...)``, ``T.int32``, ``T.let`` or ``T.let[T.int32]``."""
        if isinstance(node, ast.Subscript) and dotted_name(node.value) == "T.let":
            node = node.slice
        if isinstance(node, ast.Call):
            self.call(node)
        elif not (
            isinstance(node, ast.Attribute) and dotted_name(node) == f"T.{node.attr}" and language.is_call(node.attr)
        ):
            raise self.refuse(node, hint=": a type such as T.Buffer((8,), 'float32') or T.int32 is wanted here")

    def _body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.For():
                self._loop(node)
            case ast.With():
                self._scope(node)
            case ast.If(test, body, orelse):
                self.expression(test)
                self._body([*body, *orelse])
            case ast.Assign(targets, value):
                for target in targets:
                    self._target_of(target)
                self.argument(value)
            case ast.AnnAssign(target, annotation, value):
                self._target_of(target)
                self._annotation(annotation)
                if value is not None:
                    self.expression(value)
            case ast.Expr(ast.Call() as call):
                self.call(call)
            case _ if not _is_nothing(node):
                raise self.refuse(node, f"the statement `{type(node).__name__.lower()}`")

    def _loop(self, node: ast.For) -> None:
        if node.orelse or node.type_comment:
            raise self.refuse(node, "a loop with `else`")
        kinds = [f"T.{name}" for name in sorted(language.LOOPS)]
        match node.iter:
            case ast.Call(ast.Name("range")) as call:
                self.arguments(call)
            case ast.Call(function) as call if dotted_name(function) in kinds:
                self.call(call)
            case _:
                raise self.refuse(node.iter, hint=f": a loop goes over range, {', '.join(kinds)}")
        self._target_of(node.target)
        self._body(node.body)

    def _scope(self, node: ast.With) -> None:
        for item in node.items:
            match item.context_expr:
                case ast.Call(ast.Attribute(_, name)) as call if name in language.SCOPES:
                    self.call(call)
                case refused:
                    raise self.refuse(refused, hint=language.hint(getattr(getattr(refused, "func", None), "attr", "")))
            if item.optional_vars is not None:
                self._target_of(item.optional_vars)
        self._body(node.body)

    def _target_of(self, node: ast.expr) -> None:
        match node:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._target_of(part)
            case ast.Subscript():
                self.subscript(node)
            case ast.Name():
                pass  # names were bound beforehand
            case _:
                raise self.refuse(node)


def _is_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
