"""Questions of one key are answered together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ALIKE = ("device", "model", "compiled", "retarget", "clock_mhz")


def batch_key(asked: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return what requests of ``predict`` have in common that the model sees at once; None for one that is alone."""
    return tuple(asked.get(name) for name in _ALIKE) if "operators" in asked["programs"] else None
