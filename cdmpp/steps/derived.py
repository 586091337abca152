"""Derived: copies of frozen dataclasses that need no check, since they follow from what was checked."""

from __future__ import annotations

from typing import Any, TypeVar

AnyCopied = TypeVar("AnyCopied")


def derived(one: AnyCopied, **changes: Any) -> AnyCopied:
    """Return a copy with changes, as ``dataclasses.replace`` does, but without the checks of its class.

    Graphs have thousands of ops, and a search makes hundreds of graphs of one that was checked: checks would take more
    time than all else. Only for values that follow from those of ``one``; what comes from a user goes to the class.

    Args:
        one: a frozen dataclass; what it has worked out (``cached_property``) is not copied.
        changes: its fields by name.
    """
    found = object.__new__(type(one))
    values, names = one.__dict__, one.__dataclass_fields__  # type: ignore[attr-defined]
    found.__dict__.update(values if len(values) == len(names) else {name: values[name] for name in names}, **changes)
    return found
