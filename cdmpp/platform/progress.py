"""A bar on stderr for what takes longer than a moment; number and CPU seconds of it in the log, for ``--verbose``."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


def shown(items: Generator[T], title: str, total: int, progress: bool) -> Generator[T]:
    """Yield ``items``, with a bar where ``progress`` is wanted; number and speed of them are logged at the end."""
    begun_s, count = time.process_time(), 0
    for one in _with_bar(items, title, total) if progress else items:
        yield one
        count += 1
    log_spent(f"{count:,} {title}", count, begun_s)


def log_spent(what: str, count: int, begun_s: float) -> None:
    """Log CPU seconds since ``begun_s`` of ``time.process_time``, and how many of ``count`` were done in one."""
    spent_s = time.process_time() - begun_s
    log.debug("%s: %.2f CPU seconds, %.3g a second", what, spent_s, count / max(spent_s, 1e-9))


def _with_bar(items: Iterable[T], title: str, total: int) -> Iterable[T]:
    from rich.console import Console
    from rich.progress import track

    return track(items, title, total=total, console=Console(stderr=True), transient=True)
