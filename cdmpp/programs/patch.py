"""An attribute of another library for a while: what its own calls meet, whoever imported them by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Make the attribute ``name`` of a module or class ``value`` inside, then what it was."""
    own = vars(owner)
    is_own, before = name in own, own.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:  # of a base class
            delattr(owner, name)
