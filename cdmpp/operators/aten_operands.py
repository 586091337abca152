"""The arguments that a product of an exported graph multiplies."""

from __future__ import annotations

from typing import Any

from cdmpp.operators.aten_convolution import CONVOLUTIONS

_ADDS_FIRST = ("addmm", "baddbmm")


def operands_of(node: Any) -> tuple[Any, ...]:
    """Return nodes of both factors and of what is added, if any; empty for what is no product."""
    schema = getattr(node.target, "_schema", None)
    name = schema.name.split("::")[-1] if schema is not None else ""
    if name in _ADDS_FIRST:
        return (*node.args[1:3], node.args[0])
    if name in ("linear", *CONVOLUTIONS):
        return tuple(one for one in node.args[:3] if hasattr(one, "meta"))
    return tuple(node.args[:2]) if name in ("matmul", "mm", "bmm") else ()
