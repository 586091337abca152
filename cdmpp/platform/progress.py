"""A bar on stderr for what takes longer than a moment."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar, cast

T = TypeVar("T")


def shown(items: Generator[T], title: str, total: int, progress: bool) -> Generator[T]:
    """Yield ``items``, with a bar where ``progress`` is wanted."""
    if not progress:
        return items
    from rich.console import Console
    from rich.progress import track

    return cast(Generator[T], track(items, title, total=total, console=Console(stderr=True), transient=True))
