"""What a long collection is doing: a progress bar for people, small files for programs that watch."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cdmpp.data.files import write_json

_SETTLE_S = 0.3
"""Watchers that quieten the machine get this long after a measuring window was announced."""


class CollectionProgress:
    """Context manager around a collection; ``phase_file`` holds just the word of the current phase."""

    def __init__(self, folder: Path, done: int, phase_file: Path | None = None, show: bool = True) -> None:
        self.path = folder / ".progress.json"
        self.phase_file = phase_file
        self.phase = "build"
        self.done = self.begun_with = done
        self.total = done
        self.start = time.monotonic()
        # No refresh thread: it would run while measuring.
        self.bar = Progress(
            TextColumn("[bold]{task.fields[phase]:>8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.2f}/s"),
            TimeRemainingColumn(),
            auto_refresh=False,
            disable=not show,
            console=Console(stderr=True),
        )
        self._task = self.bar.add_task("", phase="", rate=0.0, total=None)

    def __enter__(self) -> CollectionProgress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        self.enter("done")

    @property
    def rate(self) -> float:
        """Programs a second since the start of this run."""
        return (self.done - self.begun_with) / max(time.monotonic() - self.start, 1e-9)

    def enter(self, phase: str) -> None:
        """Announce a phase: sample, build, measure or done."""
        self.phase = phase
        if self.phase_file is not None:
            temporary = self.phase_file.with_name(f".{self.phase_file.name}.{os.getpid()}")
            temporary.write_text(phase)
            os.replace(temporary, self.phase_file)
        self.update()
        if phase == "measure" and self.phase_file is not None:
            time.sleep(_SETTLE_S)

    def update(self, done: int | None = None, total: int | None = None) -> None:
        """Record counts of programs, refresh the bar and the progress file."""
        self.done = self.done if done is None else done
        self.total = max(self.done, self.total if total is None else total)
        left = (self.total - self.done) / self.rate if self.rate > 0 else None
        write_json(
            self.path,
            {
                "phase": self.phase,
                "pid": os.getpid(),
                "done": self.done,
                "total": self.total,
                "rate_per_s": round(self.rate, 3),
                "eta_s": None if left is None else round(left),
            },
        )
        self.bar.update(self._task, completed=self.done, total=self.total, phase=self.phase, rate=self.rate)
        self.bar.refresh()
