"""Expressions of TVMScript under the whitelist of ``language``: numbers, values, calls of `T`, and their arguments."""

from __future__ import annotations

import ast

from cdmpp.errors import UnsupportedProgramError
from cdmpp.programs import language

_MAX_NUMBER = 2**64
_BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.BitXor)
_UNARY = (ast.USub, ast.UAdd, ast.Not, ast.Invert)
_COMPARE = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class ExpressionCheck:
    """Every method lets one kind of node through and raises ``UnsupportedProgramError`` for the rest."""

    def __init__(self, where: str):
        self.where = where
        self.bound: set[str] = set()
        """Names of the function at hand; no other may be read."""

    def refuse(self, node: ast.AST, what: str = "", hint: str = "") -> UnsupportedProgramError:
        """Make the error for ``node``, which is shown as ``what``; ``hint`` says what would work."""
        try:
            what = what or ast.unparse(node)
        except (ValueError, RecursionError):
            what = type(node).__name__
        shown = what if len(what) <= 80 else what[:77] + "..."
        line = getattr(node, "lineno", "?")
        return UnsupportedProgramError(f"{self.where}, line {line}: {shown} is not TVMScript that cdmpp reads{hint}")

    def expression(self, node: ast.expr) -> None:
        """Check a number, a value or arithmetic on them."""
        match node:
            case ast.Name():
                self._name(node)
            case ast.Constant(bool() | int() | float() as number) if abs(number) < _MAX_NUMBER or type(number) is float:
                pass
            case ast.Subscript():
                self.subscript(node)
            case ast.Call():
                self.call(node)
            case ast.BinOp(left, op, right) if isinstance(op, _BINARY):
                self._each(left, right)
            case ast.UnaryOp(op, operand) if isinstance(op, _UNARY):
                self.expression(operand)
            case ast.BoolOp(_, values):
                self._each(*values)
            case ast.Compare(left, ops, comparators) if all(isinstance(op, _COMPARE) for op in ops):
                self._each(left, *comparators)
            case ast.Attribute(value, attr) if attr in language.METHODS - {"astype"}:
                self._name(value)
            case _:
                raise self.refuse(node)

    def _each(self, *nodes: ast.expr) -> None:
        for node in nodes:
            self.expression(node)

    def _name(self, node: ast.expr) -> None:
        if not isinstance(node, ast.Name) or node.id not in self.bound - {"T", "I"}:
            raise self.refuse(node, hint=": no parameter, loop or assignment of this function has that name")

    def subscript(self, node: ast.Subscript) -> None:
        """Check ``A[i, 0:8]`` or ``A.shape[0]``."""
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            self.expression(node.value)
        else:
            self._name(node.value)
        for part in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
            bounds = (part.lower, part.upper, part.step) if isinstance(part, ast.Slice) else (part,)
            self._each(*(bound for bound in bounds if bound is not None))

    def call(self, node: ast.Call) -> None:
        """Check a call of ``T.name``, ``T.axis.name`` or ``value.astype``."""
        match node.func:
            case ast.Attribute(value, "astype"):
                self.expression(value)
            case ast.Attribute(ast.Name("T"), name):
                if not language.is_call(name):
                    raise self.refuse(node.func, hint=language.hint(name))
            case ast.Attribute(ast.Attribute(ast.Name("T"), "axis"), name) if name in language.AXES:
                pass
            case _:
                raise self.refuse(node.func)
        self.arguments(node)

    def arguments(self, node: ast.Call) -> None:
        """Check all arguments of a call."""
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.refuse(keyword.value, "** in a call")
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.argument(argument)

    def argument(self, node: ast.expr, nested: bool = False) -> None:
        """Check as ``expression`` does; a list, a dictionary of attributes and a string outside of lists pass too."""
        match node:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self.argument(part, nested=True)
            case ast.Dict():
                self._attributes(node)
            case ast.Constant(None):
                pass
            case ast.Constant(str() as text) if not nested:
                if not language.is_text(text):
                    raise self.refuse(node, hint=": brackets, quotes and line breaks are not for strings of programs")
            case _:
                self.expression(node)

    def _attributes(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                raise self.refuse(node)
            if not language.is_attribute_key(key.value):
                raise self.refuse(key, hint=": no attribute of tensor programs that is known here")
            if isinstance(value, ast.Call) and dotted_name(value.func) == "T.target":
                self._target(value)
                continue
            for part in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
                self.argument(part)

    def _target(self, node: ast.Call) -> None:
        """``T.target({...})``: what a lowered function is compiled for."""
        try:
            options = ast.literal_eval(node.args[0])
        except (ValueError, TypeError, IndexError):
            options = None
        if len(node.args) != 1 or node.keywords or not isinstance(options, dict):
            raise self.refuse(node, hint=": a target is a dictionary of plain options")
        language.check_target(options, self.where)


def dotted_name(node: ast.expr) -> str:
    """Return ``T.axis.spatial`` of an attribute of names; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
