"""A bar on stderr for work that takes longer than a moment; lines where no terminal is."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

_SILENT_S, _LINE_S = 2.0, 15.0
"""Before anything is shown; between two lines without a terminal."""


def with_progress(items: Iterable[T], title: str, total: int, enabled: bool = True) -> Generator[T]:
    """``items``, and how many of ``total`` are done."""
    started = printed = time.monotonic()
    bar: Any = None
    try:
        for done, item in enumerate(items, start=1):
            yield item
            now = time.monotonic()
            if not enabled or now - started < _SILENT_S:
                continue
            if sys.stderr.isatty():
                bar = bar or _bar(title, total)
                bar.update(bar.task_ids[0], completed=done)
            elif now - printed > _LINE_S:
                printed = now
                print(f"{title}: {done:,} of {total:,} ({done / (now - started):.1f} a second)", file=sys.stderr)
    finally:
        if bar is not None:
            bar.stop()


def _bar(title: str, total: int) -> Any:
    from rich.console import Console  # takes as long to import as a small prediction
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True))
    bar.add_task(title, total=total)
    bar.start()
    return bar
