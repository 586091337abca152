"""A bar on stderr, or a line of the log now and then, for what takes longer than a moment; CPU seconds in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)
_TELL_S = 10.0
"""Seconds between two lines where no bar is shown: what is faster says nothing."""


def shown(items: Generator[T], title: str, total: int, progress: bool) -> Generator[T]:
    """Yield ``items``, with a bar where ``progress`` is wanted, else how far they are is logged every ten seconds.

    Number and speed of them are logged at the end.
    """
    begun_s, count = time.process_time(), 0
    for one in _with_bar(items, title, total) if progress else _told(items, title, total):
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


def _told(items: Iterable[T], title: str, total: int) -> Generator[T]:
    last_s = time.monotonic()
    for count, one in enumerate(items, 1):
        yield one
        if count < total and time.monotonic() - last_s >= _TELL_S:
            last_s = time.monotonic()
            log.info("%s: %s of %s", title, f"{count:,}", f"{total:,}")
