"""A bar on stderr for work that takes longer than a moment; lines where no terminal is."""

from __future__ import annotations

import sys
import time
from typing import Any

_SILENT_S, _LINE_S = 2.0, 15.0
"""Before anything is shown; between two lines without a terminal."""
_TITLE = 36
"""Longest name of a bar; in a terminal of 80 columns its numbers would not fit beside a longer one."""


class Progress:
    """``with Progress(...) as shown: shown.show(done)``, as often as one likes."""

    def __init__(self, title: str, total: int, enabled: bool = True) -> None:
        self.title, self.total, self.enabled = title, total, enabled
        self._started = self._printed = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int) -> None:
        """Say that ``done`` of ``total`` are done."""
        now = time.monotonic()
        if not self.enabled or now - self._started < _SILENT_S:
            return
        if sys.stderr.isatty():
            self._bar = self._bar or _bar(self.title, self.total)
            self._bar.update(self._bar.task_ids[0], completed=done)
        elif now - self._printed > _LINE_S:
            self._printed, rate = now, done / (now - self._started)
            print(f"{self.title}: {done:,} of {self.total:,} ({rate:.1f} a second)", file=sys.stderr, flush=True)


def _bar(title: str, total: int) -> Any:
    from rich import progress as rich  # takes as long to import as a small prediction
    from rich.console import Console

    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn())
    bar = rich.Progress(*columns, rich.TimeElapsedColumn(), rich.TimeRemainingColumn(), console=Console(stderr=True))
    bar.add_task(title if len(title) <= _TITLE else f"{title[: _TITLE - 1]}…", total=total)
    bar.start()
    return bar
