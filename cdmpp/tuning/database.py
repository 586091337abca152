"""TuningDatabase: a MetaSchedule database of one network, written whole after every step, so that none is lost."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.measure.build import arguments_of
from cdmpp.platform.files import read_json, write_json, write_text
from cdmpp.programs.database import FAILED_SECONDS, RECORD_FILE, WORKLOAD_FILE, BadLine, read_lines, read_workloads
from cdmpp.programs.identity import task_id
from cdmpp.programs.replay import parse_workload
from cdmpp.programs.task import Task

_ABOUT = "cdmpp.json"
"""Beside TVM's two files: which program of a task has a predicted time in place of a measured one."""


@dataclass
class TuningDatabase:
    """Schedules of a network's tasks are kept in memory and on disk."""

    folder: Path
    tasks: Mapping[str, Task]
    target: Mapping[str, Any]
    measured: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)
    """Task id -> trace as JSON -> seconds of each repeat; none: it did not build or run."""
    predicted: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Task id -> trace and predicted seconds, of tasks of which nothing is measured."""

    @staticmethod
    def open(folder: Path, tasks: Mapping[str, Task], target: Mapping[str, Any]) -> TuningDatabase:
        """Go on with what lies in ``folder``; ``DataError`` if that is of another network or another tool."""
        found = TuningDatabase(folder, dict(sorted(tasks.items())), target)
        if not (folder / RECORD_FILE).is_file() and not (folder / WORKLOAD_FILE).is_file():
            return found
        try:
            predicted = dict(read_json(folder / _ABOUT)["predicted"])
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{folder} holds a database that `cdmpp tune` did not write ({_ABOUT} is missing or damaged): give "
                "another folder"
            ) from error
        keys = [None if isinstance(m, BadLine) else task_id(m) for m in read_workloads(folder)]
        if keys != list(found.tasks):
            raise DataError(f"{folder} holds the database of another network or batch: give another folder")
        for line in read_lines(folder) if (folder / RECORD_FILE).is_file() else ():
            if isinstance(line, BadLine) or not 0 <= line.workload < len(keys):
                raise DataError(f"{folder / RECORD_FILE} line {line}: the database is damaged, give another folder")
            key = str(keys[line.workload])
            if predicted.get(key) != _digest(line.schedule):
                found.measured.setdefault(key, {})[line.schedule] = () if line.failed else line.seconds
        return found

    def save(self) -> None:
        """Replace the files in ``folder``; a task with measured programs has no predicted one any more."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / WORKLOAD_FILE).is_file():
            _write(self.folder / WORKLOAD_FILE, _workloads(self.tasks))
        rows = [(key, trace, seconds) for key, each in self.measured.items() for trace, seconds in each.items()]
        predicted = {key: one for key, one in self.predicted.items() if self._stands(key, one[0])}
        rows += [(key, trace, (seconds,)) for key, (trace, seconds) in predicted.items()]
        about = {"predicted": {key: _digest(trace) for key, (trace, _) in sorted(predicted.items())}}
        if not (self.folder / _ABOUT).is_file():
            write_json(self.folder / _ABOUT, about)
        _write(self.folder / RECORD_FILE, "".join(f"{json.dumps(line)}\n" for line in self._lines(rows)))
        # Last: after a kill in between a measured program counts as predicted, and is measured again.
        write_json(self.folder / _ABOUT, about)

    def _stands(self, key: str, schedule: str) -> bool:
        """Return True if a predicted program is all that a task has: none has run, and this one did not fail."""
        each = self.measured.get(key, {})
        return not any(each.values()) and schedule not in each

    def _lines(self, rows: Sequence[tuple[str, str, tuple[float, ...]]]) -> list[Any]:
        """Rows as MetaSchedule writes them; one that did not run has a time beyond ``FAILED_SECONDS``."""
        numbers = {key: i for i, key in enumerate(self.tasks)}
        shapes = {
            key: [["TENSOR", dtype, shape] for shape, dtype in arguments_of(self.tasks[key].workload)]
            for key in {key for key, _, _ in rows}
        }
        return [
            [numbers[key], [json.loads(trace), list(seconds or (10 * FAILED_SECONDS,)), dict(self.target), shapes[key]]]
            for key, trace, seconds in rows
        ]


def _digest(schedule: str) -> str:
    return hashlib.sha256(schedule.encode()).hexdigest()[:16]


def _workloads(tasks: Mapping[str, Task]) -> str:
    """The workload file as TVM writes it."""
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    with tempfile.TemporaryDirectory() as folder:
        database = JSONDatabase(work_dir=folder)
        for task in tasks.values():
            database.commit_workload(parse_workload(task.workload))
        return (Path(folder) / WORKLOAD_FILE).read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    write_text(path, text)
