"""What a long collection is doing: a progress bar for people, small files for programs that watch."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cdmpp.data.files import write_atomic, write_json

_SETTLE_S = 0.3
"""Watchers that quieten the machine get this long after a measuring window was announced."""


class CollectionProgress:
    """Context manager around a collection; ``phase_file`` holds just the word of the current phase."""

    def __init__(self, folder: Path, done: int, phase_file: Path | None = None, show: bool = True) -> None:
        self.path = folder / ".progress.json"
        self.phase_file = phase_file
        self.phase = "build"
        self.done = self.total = self._begun_with = done
        self._start = time.monotonic()
        columns = (
            TextColumn("[bold]{task.fields[phase]:>8}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.2f}/s"), TimeRemainingColumn(),
        )  # fmt: skip
        # No refresh thread: it would run while measuring.
        self.bar = Progress(*columns, auto_refresh=False, disable=not show, console=Console(stderr=True))
        self._task = self.bar.add_task("", phase="", rate=0.0, total=None)

    def __enter__(self) -> CollectionProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
        self.enter("done")

    def enter(self, phase: str) -> None:
        """Announce a phase: sample, build, measure or done."""
        self.phase = phase
        if self.phase_file is not None:
            write_atomic(self.phase_file, self._write_phase)
        self.update(self.done, self.total)
        if phase == "measure" and self.phase_file is not None:
            time.sleep(_SETTLE_S)

    def _write_phase(self, path: Path) -> None:
        path.write_text(self.phase)

    def update(self, done: int, total: int) -> None:
        """Record counts of programs, refresh the bar and the progress file."""
        self.done, self.total = done, max(done, total)
        rate = (done - self._begun_with) / max(time.monotonic() - self._start, 1e-9)
        state = {
            "phase": self.phase,
            "pid": os.getpid(),
            "done": done,
            "total": self.total,
            "rate_per_s": round(rate, 3),
            "eta_s": round((self.total - done) / rate) if rate > 0 else None,
        }
        write_json(self.path, state)
        self.bar.update(self._task, completed=done, total=self.total, phase=self.phase, rate=rate)
        self.bar.refresh()
