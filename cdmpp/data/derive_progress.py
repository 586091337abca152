"""A bar on stderr for work that takes longer than a moment; lines where no terminal is."""

from __future__ import annotations

import sys
import time
from typing import Any

_SILENT_S, _TELL_S = 2.0, 15.0
"""Before anything is shown; between two lines without a terminal."""
_TITLE = 36
"""Longest name of a bar; in a terminal of 80 columns its numbers would not fit beside a longer one."""


class Progress:
    """``with Progress(...) as shown: shown.show(done)``, as often as one likes."""

    def __init__(self, title: str, total: int, enabled: bool = True) -> None:
        self.title, self.total, self.enabled = title, total, enabled
        self._started = self._told = time.monotonic()
        self._bar: Any = None
        self._line: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int) -> None:
        now = time.monotonic()
        if not self.enabled or now - self._started < _SILENT_S:
            return
        if sys.stderr.isatty():
            if self._bar is None:
                self._start()
            self._bar.update(self._line, completed=done)
        elif now - self._told > _TELL_S:
            self._told, rate = now, done / (now - self._started)
            print(f"{self.title}: {done:,} of {self.total:,} ({rate:.1f} a second)", file=sys.stderr, flush=True)

    def _start(self) -> None:
        from rich import progress as rich  # takes as long to import as a small prediction
        from rich.console import Console

        columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn())
        times = (rich.TimeElapsedColumn(), rich.TimeRemainingColumn())
        self._bar = rich.Progress(*columns, *times, console=Console(stderr=True))
        name = self.title if len(self.title) <= _TITLE else f"{self.title[: _TITLE - 1]}…"
        self._line = self._bar.add_task(name, total=self.total)
        self._bar.start()
