"""Notes what ``torch.compile`` wraps while a network is exported: an export looks through it without a word."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from cdmpp.errors import some

EAGER, TVM = "eager PyTorch", "what TVM compiles of it"
"""Names of what a compiled part is answered as."""


@contextmanager
def compiled_noted() -> Iterator[dict[str, None]]:
    """Run what ``torch.compile`` wraps eagerly, and note the names of what an export meets in the meantime.

    ``torch.compile`` wraps modules, methods and functions alike in one function, which asks whether an export is under
    way before it passes the call on: whoever asks is looked at.
    """
    import torch

    names: dict[str, None] = {}
    asked = torch.compiler.is_exporting

    def is_exporting() -> bool:
        caller = sys._getframe(1)
        if (exporting := asked()) and caller.f_code.co_name == "compile_wrapper":
            names.setdefault(_name(caller.f_locals.get("fn")))
        return exporting

    torch.compiler.is_exporting = is_exporting
    try:
        with torch.compiler.set_stance("force_eager"):
            yield names
    finally:
        torch.compiler.is_exporting = asked


def compiled_modules(model: Any) -> dict[str, None]:
    """Name the classes of modules that ``module.compile()`` wrapped in their places, which a copy loses."""
    wrapped = [one for one in model.modules() if getattr(one, "_compiled_call_impl", None) is not None]
    return dict.fromkeys(type(one).__name__ for one in wrapped)


def compiled_flag(names: Iterable[str], as_what: str) -> tuple[str, ...]:
    """Say of what ``compiled_noted`` noted that it is answered ``as_what``; empty where nothing was."""
    told = some(list(names), ", ", 5)
    return (f"torch.compile is left out: {told} answered as {as_what}",) if told else ()


def _name(function: Any) -> str:
    """Name of a function, or of the class of a module."""
    inner = inspect.unwrap(function)
    owner = getattr(inner, "__self__", inner)
    return str(getattr(owner, "__qualname__", type(owner).__name__))
