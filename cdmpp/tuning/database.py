"""TuningDatabase: a MetaSchedule database of one network, written whole after every step, so that none is lost."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.data.files import read_json, write_atomic, write_json
from cdmpp.errors import DataError
from cdmpp.programs.database import FAILED_SECONDS, RECORD_FILE, WORKLOAD_FILE, BadLine, read_lines, read_workloads
from cdmpp.programs.identity import task_id
from cdmpp.programs.replay import parse_target, parse_workload
from cdmpp.programs.task import Task

_ABOUT = "cdmpp.json"
"""Beside TVM's two files: which tasks have a predicted time in place of a measured one."""


@dataclass
class TuningDatabase:
    """Schedules of a network's tasks, in memory and on disk."""

    folder: Path
    tasks: Mapping[str, Task]
    target: Mapping[str, Any]
    measured: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)
    """Task id -> trace as JSON -> seconds of each repeat; none: it did not build or run."""
    predicted: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Task id -> trace and predicted seconds, of tasks of which nothing is measured."""

    @staticmethod
    def open(folder: Path, tasks: Mapping[str, Task], target: Mapping[str, Any]) -> TuningDatabase:
        """What lies in ``folder`` goes on; ``DataError`` where that is of another network or another tool."""
        found = TuningDatabase(folder, tasks, target)
        if not (folder / RECORD_FILE).is_file() and not (folder / WORKLOAD_FILE).is_file():
            return found
        try:
            predicted = set(read_json(folder / _ABOUT)["predicted"])
        except (DataError, KeyError, TypeError) as error:
            raise DataError(
                f"{folder} holds a database that `cdmpp tune` did not write ({_ABOUT} is missing or damaged): give "
                "another folder"
            ) from error
        keys = [None if isinstance(m, BadLine) else task_id(m) for m in read_workloads(folder)]
        if keys != list(tasks):
            raise DataError(f"{folder} holds the database of another network or batch: give another folder")
        for line in read_lines(folder):
            if isinstance(line, BadLine):
                raise DataError(f"{folder / RECORD_FILE} line {line}: the database is damaged, give another folder")
            key = keys[line.workload]
            if key not in predicted:
                seconds = () if line.failed else line.seconds
                found.measured.setdefault(str(key), {})[line.schedule] = seconds
        return found

    def save(self) -> None:
        """Replace the files in ``folder``; a task with measured programs has no predicted one any more."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / WORKLOAD_FILE).is_file():
            text = _workloads(self.tasks)
            write_atomic(self.folder / WORKLOAD_FILE, lambda temporary: _write(temporary, text))
        rows = [(key, trace, seconds) for key, each in self.measured.items() for trace, seconds in each.items()]
        predicted = {key: one for key, one in self.predicted.items() if not any(self.measured.get(key, {}).values())}
        rows += [(key, trace, (seconds,)) for key, (trace, seconds) in predicted.items()]
        write_json(self.folder / _ABOUT, {"predicted": sorted(set(predicted) - set(self.measured))})
        text = "".join(f"{json.dumps(line)}\n" for line in self._lines(rows))
        write_atomic(self.folder / RECORD_FILE, lambda temporary: _write(temporary, text))

    def _lines(self, rows: Sequence[tuple[str, str, tuple[float, ...]]]) -> list[Any]:
        numbers, target = {key: i for i, key in enumerate(self.tasks)}, _plain_target(self.target)
        shapes = {key: _arguments(self.tasks[key]) for key, _, _ in rows}
        failed = [10 * FAILED_SECONDS]  # as MetaSchedule writes it
        return [
            [numbers[key], [json.loads(trace), list(seconds) or failed, target, shapes[key]]]
            for key, trace, seconds in rows
        ]


def _arguments(task: Task) -> list[Any]:
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    found = ArgInfo.from_entry_func(parse_workload(task.workload), remove_preproc=True)
    return [json.loads(json.dumps(_plain(one.as_json()))) for one in found]


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float):
        return value
    return [_plain(part) for part in value]


def _plain_target(target: Mapping[str, Any]) -> Any:
    import tvm

    known: Any = parse_target(target)
    assert isinstance(known, tvm.target.Target)
    return dict(target)


def _workloads(tasks: Mapping[str, Task]) -> str:
    """The workload file as TVM writes it."""
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    with tempfile.TemporaryDirectory() as folder:
        database = JSONDatabase(work_dir=folder)
        for task in tasks.values():
            database.commit_workload(parse_workload(task.workload))
        return (Path(folder) / WORKLOAD_FILE).read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
