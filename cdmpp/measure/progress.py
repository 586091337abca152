"""Progress of a long collection: a bar for people, a small file for programs that watch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class FleetProgress:
    """This context manager keeps jobs of several devices in ``.progress.json`` of ``folder``, and shows a bar each."""

    def __init__(self, folder: Path, devices: Sequence[str], show: bool = True) -> None:
        self.path = folder / ".progress.json"
        self.state: dict[str, Any] = {"phase": "plan", "done": 0, "total": 0, "devices": {}}
        columns = TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn()
        said = TextColumn("jobs, {task.fields[said]}")
        console = Console(stderr=True)
        self.bars = Progress(*columns, said, TimeRemainingColumn(), auto_refresh=False, disable=not show,
                             console=console, speed_estimate_period=3600.0)  # fmt: skip
        self._bar_of = {name: self.bars.add_task(name, total=None, said="being planned") for name in devices}

    def __enter__(self) -> FleetProgress:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()
        self.state["phase"] = "done" if self.state["done"] == self.state["total"] else "stopped"
        write_json(self.path, self.state)

    def show(self, counts: Mapping[str, Mapping[str, int]], lanes: Mapping[str, int]) -> None:
        """Announce device -> state -> jobs, and device -> servers that work for this client."""
        devices = {}
        for name, bar in self._bar_of.items():
            jobs, servers = counts.get(name, {}), lanes.get(name, 0)
            done = jobs.get("done", 0) + jobs.get("refused", 0)
            devices[name] = {"done": done, "total": sum(jobs.values()), "refused": jobs.get("refused", 0)}
            refused = f", {jobs['refused']} refused" if jobs.get("refused") else ""
            said = f"{servers} server{'s' * (servers != 1)}{refused}"
            self.bars.update(bar, completed=done, total=sum(jobs.values()), said=said)
        done, total = (sum(one[name] for one in devices.values()) for name in ("done", "total"))
        state = {"phase": "measure", "done": done, "total": total, "devices": devices}
        if state != self.state:
            self.state = state
            write_json(self.path, state)
        self.bars.refresh()
