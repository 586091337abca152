"""Data sets of several hosts become one, by content: the same row once, all rows in an order of what they hold.

A union of sets: it does not matter in which order, in how many steps or how often folders are put together, and the
files come out the same to the bit.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from cdmpp.ast.layout import EAGER_FEATURES
from cdmpp.data.agreement import TOLERANCE, Conflict, conflicts
from cdmpp.data.records import append_records, each_row, read_info, read_tasks, record_parts, write_info, write_tasks
from cdmpp.data.schema import Record
from cdmpp.data.united_rows import UnitedRow, UnitedRows
from cdmpp.errors import DataError, some
from cdmpp.platform.files import FAILURES_FILE, REPEATS_FILE, append_lines, read_lines
from cdmpp.platform.progress import shown
from cdmpp.programs.task import Task

_DERIVED = ("cdmpp", EAGER_FEATURES)
"""Kinds whose vectors are derived from the rows."""
_JOURNALS = (FAILURES_FILE, REPEATS_FILE)
_PART_ROWS = 10000


@dataclass(frozen=True)
class DataUnion:
    """This is what several folders hold together. ``of`` reads it, ``write`` makes a folder of it."""

    stored: UnitedRows
    tasks: tuple[Task, ...]
    journals: Mapping[str, tuple[str, ...]]
    """Name of a file -> its lines, sorted: what failed, what was measured again."""
    features: str
    protocols: Mapping[str, str]
    networks: tuple[str, ...]
    read: int
    """Rows that were read."""
    choose: Callable[[list[UnitedRow]], Sequence[UnitedRow]] = list
    """This says which rows of a program are left."""

    @staticmethod
    def of(folders: Sequence[Path], progress: bool = False) -> DataUnion:
        """Read ``folders``; ``progress``: with a bar.

        Raises:
            DataError: one is no data set or has rows that cannot be used, they are of different kinds, or contradict
                each other in what a program or task is.
        """
        folders = sorted(folders)
        infos = [read_info(folder) for folder in folders]
        kinds = {str(info.get("features", "cdmpp")): folder for info, folder in zip(infos, folders, strict=True)}
        if len(kinds) > 1:
            named = ", ".join(f"{folder} has features={kind}" for kind, folder in sorted(kinds.items()))
            raise DataError(f"a data set is of one kind: {named}")
        (kind,) = kinds
        if kind not in _DERIVED:
            raise DataError(
                f"{folders[0]} has features={kind}, which lie beside its rows: import all files into one folder"
            )
        if begun := [folder for folder, info in zip(folders, infos, strict=True) if info.get("complete") is False]:
            raise DataError(f"{begun[0]} is the beginning of an import that did not end: run the import again first")
        stored = UnitedRows(folders)
        read = 0
        for folder in folders:
            parts = record_parts(folder)
            bar = shown((part for part in parts), f"parts of {folder.name}", len(parts), progress)
            read += stored.add(folder, each_row(folder, parts=bar))
        for group in stored.programs(measured_again=True):
            _check_program([row.record for row in group])
        protocols: dict[str, str] = {}
        for info in infos:
            for name, text in dict(info.get("protocols", {})).items():
                protocols[name] = max(str(text), protocols.get(name, ""))
        return DataUnion(
            stored,
            _united_tasks(folders),
            {name: _lines(folders, name) for name in _JOURNALS},
            kind,
            dict(sorted(protocols.items())),
            tuple(sorted({str(name) for info in infos for name in info.get("networks", ())})),
            read,
        )

    @property
    def rows(self) -> Iterator[UnitedRow]:
        """Each different row once, in the order of their content."""
        return chain.from_iterable(self.programs)

    @property
    def programs(self) -> Iterator[Sequence[UnitedRow]]:
        """The rows of each program that has any left."""
        return filter(None, map(self.choose, self.stored.programs()))

    def conflicts(self, tolerance: float = TOLERANCE) -> list[Conflict]:
        """List the measurements that disagree, see ``agreement``."""
        several = map(self.choose, self.stored.programs(measured_again=True))
        return [one for group in several for one in conflicts((row.record for row in group), tolerance)]

    def folders_of(self, record: Record) -> tuple[Path, ...]:
        """Return the folders that hold ``record``, one of ``rows``."""
        return self.stored.folders_of(record)

    def resolved(self, tolerance: float, keep: Sequence[str] = (), drop: bool = False) -> DataUnion:
        """Return what is left once no two measurements disagree.

        Args:
            tolerance: as of ``conflicts``.
            keep: hosts, parts of their names where none has the whole, or folders; of programs with a conflict only
                rows of the first one stay that has any.
            drop: leave out programs with a conflict that ``keep`` does not settle.

        Raises:
            DataError: conflicts are left. None is settled by a mean or a minimum: two values that disagree are not
                better together.
        """
        disputed = {_program(one.first) for one in self.conflicts(tolerance)}

        def kept(group: list[UnitedRow]) -> Sequence[UnitedRow]:
            group = list(self.choose(group))
            return _first_of(keep, group) if group and group[0].program in disputed else group

        chosen = dataclasses.replace(self, choose=kept)
        left = chosen.conflicts(tolerance)
        if left and not drop:
            advice = "give --keep HOST (or a folder) for the one to trust, --drop-conflicts, or measure these again"
            if keep:
                advice = f"--keep {' --keep '.join(keep)} does not settle them; " + advice
            raise DataError(
                f"measurements disagree in {len(left)} pairs: {some([str(one) for one in left], most=3)}. "
                f"Nothing was written; {advice}"
            )
        lost = {_program(one.first) for one in left}
        if not lost:
            return chosen
        return dataclasses.replace(self, choose=lambda group: () if group[0].program in lost else kept(group))

    def write(self, out: Path) -> None:
        """Write a data set folder, whole or not at all; ``DataError`` where ``out`` holds something."""
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise DataError(f"{out} is there already and not empty: choose another folder")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-", ignore_cleanup_errors=True) as at:
                made = Path(at) / "made"
                self._fill(made, out.name)
                if out.exists():
                    out.rmdir()
                made.rename(out)
        except OSError as error:
            raise DataError(f"cannot write {out}: {error.strerror or error}. Nothing was written there") from error

    def _fill(self, folder: Path, name: str) -> None:
        folder.mkdir()
        programs, measured, devices, hosts = 0, set[str](), set[str](), set[str]()

        def counted() -> Iterator[Record]:
            nonlocal programs
            for group in self.programs:
                programs += 1
                for row in group:
                    measured.add(row.record.task_id)
                    devices.add(row.record.device)
                    hosts.add(row.record.host)
                    yield row.record

        records = counted()
        while append_records(folder, islice(records, _PART_ROWS)) is not None:
            pass
        write_tasks(folder, [task for task in self.tasks if task.task_id in measured])
        for file, lines in self.journals.items():
            if lines:
                append_lines(folder / file, [json.loads(line) for line in lines])
        write_info(
            folder,
            name=name,
            devices=sorted(devices),
            hosts=sorted(filter(None, hosts)),
            protocols=dict(self.protocols),
            networks=list(self.networks),
            programs=programs,
            **({"features": self.features} if self.features != "cdmpp" else {}),
        )
        for left in (".writer.lock", ".writer.json"):
            (folder / left).unlink(missing_ok=True)


def _program(record: Record) -> tuple[str, str]:
    return record.device, record.record_id


def _first_of(keep: Sequence[str], group: Sequence[UnitedRow]) -> Sequence[UnitedRow]:
    """Return the rows of a program that are of the first of ``keep`` which has any; all, where none has."""
    for name in keep:
        exactly = [row for row in group if row.is_by(name)]
        if found := exactly or [row for row in group if name in row.record.host]:
            return found
    return group


def _check_program(records: Sequence[Record]) -> None:
    """``DataError`` where one id stands for two programs: then a file is damaged, or was written by hand."""
    for record in records:
        for name in ("task_id", "target", "schedule"):
            if getattr(records[0], name) != getattr(record, name):
                raise DataError(
                    f"record {record.record_id} of {record.device} has two values of {name}: an id stands for one "
                    "program, so one of the folders is damaged"
                )


def _united_tasks(folders: Sequence[Path]) -> tuple[Task, ...]:
    tasks: dict[str, Task] = {}
    for folder in folders:
        for key, task in (read_tasks(folder) if (folder / "tasks.parquet").exists() else {}).items():
            old = tasks.get(key, task)
            if old.workload != task.workload:
                raise DataError(
                    f"task {key} has another text in {folder} than in a folder before it: schedules name the blocks of "
                    "their own text. Measure both hosts with the same tasks, tasks_from=FOLDER"
                )
            counts = {name: max(old.networks.get(name, 0), task.networks.get(name, 0))
                      for name in sorted({*old.networks, *task.networks})}  # fmt: skip
            # Names and origins may differ by where a task was met first: the least text is the same in every order.
            least = min(old, task, key=lambda one: json.dumps(dataclasses.asdict(one), sort_keys=True))
            tasks[key] = dataclasses.replace(least, networks=counts)
    return tuple(tasks[key] for key in sorted(tasks))


def _lines(folders: Sequence[Path], name: str) -> tuple[str, ...]:
    values = (value for folder in folders for value in read_lines(folder / name))
    return tuple(sorted({json.dumps(value, sort_keys=True) for value in values}))
