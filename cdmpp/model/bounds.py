"""Bounds of a model's settings, checked before a single tensor is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp.errors import CdmppError

WIDTH = (1, 8192)
"""Of a layer; far above anything trained, low enough that a slip of the finger cannot ask for a terabyte."""
DEPTH = (0, 64)
SHARE = (0.0, 0.99)


def check_bounds(config: Any, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Raise a ``CdmppError`` for the first field (each entry of a tuple) that lies outside its (least, most)."""
    for name, (least, most) in bounds.items():
        values = getattr(config, name)
        for value in values if isinstance(values, tuple) else (values,):
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise CdmppError(f"model.{name} is {value!r}; it must lie between {least:g} and {most:g}")
