"""Expressions of TVMScript under the whitelist of ``language``: numbers, values, calls of `T`, and their arguments."""

from __future__ import annotations

import ast

from cdmpp.errors import UnsupportedProgramError
from cdmpp.programs import language
from cdmpp.programs.target_options import check_target

_MAX_NUMBER = 2**64
_BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.BitXor)
_UNARY = (ast.USub, ast.UAdd, ast.Not, ast.Invert)
_COMPARE = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class ExpressionCheck:
    """Every method lets one kind of node through and refuses the rest."""

    def __init__(self, where: str):
        self.where = where
        self.bound: set[str] = set()
        """Names of the function at hand; no other may be read."""

    def refuse(self, node: ast.AST, what: str = "", hint: str = "") -> UnsupportedProgramError:
        try:
            what = what or ast.unparse(node)
        except (ValueError, RecursionError):
            what = type(node).__name__
        shown = what if len(what) <= 80 else what[:77] + "..."
        line = getattr(node, "lineno", "?")
        return UnsupportedProgramError(f"{self.where}, line {line}: {shown} is not TVMScript that cdmpp reads{hint}")

    def expression(self, node: ast.expr) -> None:
        """A number, a value or arithmetic on them."""
        if isinstance(node, ast.Name):
            self.name(node)
        elif isinstance(node, ast.Constant):
            self.number(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, _BINARY):
            self.expression(node.left)
            self.expression(node.right)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, _UNARY):
            self.expression(node.operand)
        elif isinstance(node, ast.BoolOp):
            for value in node.values:
                self.expression(value)
        elif isinstance(node, ast.Compare) and all(isinstance(op, _COMPARE) for op in node.ops):
            for value in (node.left, *node.comparators):
                self.expression(value)
        elif isinstance(node, ast.Subscript):
            self.subscript(node)
        elif isinstance(node, ast.Call):
            self.call(node)
        elif isinstance(node, ast.Attribute) and node.attr in language.METHODS - {"astype"}:
            self.name(node.value)
        else:
            raise self.refuse(node)

    def name(self, node: ast.expr) -> None:
        if not isinstance(node, ast.Name) or node.id not in self.bound - {"T", "I"}:
            raise self.refuse(node, hint=": no parameter, loop or assignment of this function has that name")

    def number(self, node: ast.Constant) -> None:
        value = node.value
        if not isinstance(value, bool | int | float) or (type(value) is int and abs(value) >= _MAX_NUMBER):
            raise self.refuse(node)

    def subscript(self, node: ast.Subscript) -> None:
        if not (isinstance(node.value, ast.Attribute) and node.value.attr == "shape"):
            self.name(node.value)
        else:
            self.expression(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            bounds = (part.lower, part.upper, part.step) if isinstance(part, ast.Slice) else (part,)
            for bound in bounds:
                if bound is not None:
                    self.expression(bound)

    def call(self, node: ast.Call) -> None:
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr == "astype":
            self.expression(called.value)
        elif room_of(called) == "T":
            name = called.attr  # type: ignore[attr-defined]
            if not language.is_call(name):
                raise self.refuse(called, hint=language.hint(name))
        elif not (dotted_name(called).startswith("T.axis.") and called.attr in language.AXES):  # type: ignore[attr-defined]
            raise self.refuse(called)
        self.arguments(node)

    def arguments(self, node: ast.Call) -> None:
        for argument in node.args:
            self.argument(argument)
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.refuse(keyword.value, "** in a call")
            self.argument(keyword.value)

    def argument(self, node: ast.expr, nested: bool = False) -> None:
        """As ``expression``; also a list of them, a dictionary of attributes, and a string outside of lists."""
        if isinstance(node, ast.Tuple | ast.List):
            for part in node.elts:
                self.argument(part, nested=True)
        elif isinstance(node, ast.Dict):
            self.attributes(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not nested:
            if not language.is_text(node.value):
                raise self.refuse(node, hint=": brackets, quotes and line breaks are not for strings of programs")
        elif not (isinstance(node, ast.Constant) and node.value is None):
            self.expression(node)

    def attributes(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                raise self.refuse(node)
            if not language.is_attribute_key(key.value):
                raise self.refuse(key, hint=": no attribute of tensor programs that is known here")
            if isinstance(value, ast.Call) and dotted_name(value.func) == "T.target":
                self.target_attribute(value)
                continue
            for part in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
                self.argument(part)

    def target_attribute(self, node: ast.Call) -> None:
        """``T.target({...})``: what a lowered function is compiled for."""
        try:
            options = ast.literal_eval(node.args[0])
        except (ValueError, TypeError, IndexError):
            options = None
        if len(node.args) != 1 or node.keywords or not isinstance(options, dict):
            raise self.refuse(node, hint=": a target is a dictionary of plain options")
        check_target(options, self.where)


def room_of(node: ast.expr) -> str:
    """``T`` of ``T.name``; empty for anything longer or other."""
    return node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""


def dotted_name(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
