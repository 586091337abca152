"""Progress of a long collection: a bar for people, a small file for programs that watch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cdmpp.platform.files import write_json


class CollectionProgress:
    """This context manager keeps phase and counts of a collection in ``.progress.json`` of ``folder``."""

    def __init__(self, folder: Path, done: int, show: bool = True) -> None:
        self.path = folder / ".progress.json"
        self.state: dict[str, Any] = {"phase": "sample", "done": done, "total": done}
        columns = TextColumn("[bold]{task.fields[phase]:>8}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        # No refresh thread: it would run while measuring. Programs finish in bursts: the time left goes by an hour.
        console, hour_s = Console(stderr=True), 3600.0
        self.bar = Progress(
            *columns, auto_refresh=False, disable=not show, console=console, speed_estimate_period=hour_s
        )
        self._task = self.bar.add_task("", phase="", completed=done, total=None)

    def __enter__(self) -> CollectionProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
        self.show(phase="done")

    def show(self, **changes: Any) -> None:
        """Announce a ``phase`` (sample, build, measure or done), or the programs ``done`` and in ``total``."""
        self.state |= changes
        write_json(self.path, self.state)
        self.bar.update(self._task, completed=self.state["done"], total=self.state["total"], phase=self.state["phase"])
        self.bar.refresh()
