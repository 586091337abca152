"""A data set folder on disk: ``dataset.json``, ``tasks.parquet`` and append-only ``records/part-*.parquet``.

Whatever writes holds the folder (``lock.writing``), so that two writers take turns. Whatever reads or counts takes
each (record id, device) once: copies in a folder that was damaged before there was a lock do no harm.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from cdmpp.data.agreement import conflicts
from cdmpp.data.merge import each_once
from cdmpp.data.schema import Record
from cdmpp.errors import DataError, some
from cdmpp.platform.content import read_parquet
from cdmpp.platform.files import (
    SCHEMA_VERSION,
    check_version,
    read_json,
    read_table,
    table_batches,
    write_json,
    write_table,
)
from cdmpp.platform.lock import writing
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)
OnBad = Literal["error", "skip"]

_PART = re.compile(r"part-(\d+)\.parquet")
_ARROW = {"str": pa.string(), "float": pa.float64(), "int": pa.int32(), "bool": pa.bool_()}
_ARROW |= {"tuple[float, ...]": pa.list_(pa.float64()), "dict[str, str]": pa.string(), "dict[str, int]": pa.string()}
"""Type of a field -> of its column; dictionaries are JSON."""


def _schema(kind: type) -> pa.Schema:
    return pa.schema([(field.name, _ARROW[str(field.type)]) for field in dataclasses.fields(kind)])


_TASK_SCHEMA, RECORD_SCHEMA = _schema(Task), _schema(Record)
_KEYS = pa.schema([("device", pa.string()), ("record_id", pa.string()), ("task_id", pa.string())])
_REQUIRED = ("record_id", "task_id", "device", "target", "schedule", "latency_s")


def read_info(folder: Path) -> dict[str, Any]:
    """Read ``dataset.json``; ``DataError`` where the folder is not a data set of ours."""
    info = read_json(Path(folder) / "dataset.json")
    if not isinstance(info, dict) or not isinstance(info.get("schema_version"), int):
        raise DataError(f"{folder}/dataset.json lacks an integer 'schema_version': not a cdmpp data set")
    check_version(folder, info["schema_version"])
    return info


def write_info(folder: Path, **fields: Any) -> None:
    """Create ``dataset.json`` or update ``fields`` in it (name, devices, counts ...); ``protocols`` gain entries."""
    path = Path(folder) / "dataset.json"
    with writing(folder, "a description", wait=True):
        old = read_json(path) if path.exists() else {}
        if "protocols" in fields:
            fields["protocols"] = {**old.get("protocols", {}), **fields["protocols"]}
        write_json(path, {**old, **fields, "schema_version": SCHEMA_VERSION})


def record_parts(folder: Path) -> list[Path]:
    """List the record files of a data set in the order they were written."""
    parts = [(int(m[1]), p) for p in (Path(folder) / "records").glob("part-*") if (m := _PART.fullmatch(p.name))]
    return [path for _, path in sorted(parts)]


def count_records(folder: Path) -> dict[str, tuple[int, int]]:
    """Count (different programs, their tasks) by device, from three columns. Unreadable parts are logged."""
    read_info(folder)
    keys = [_KEYS.empty_table()]
    for path in record_parts(folder):
        try:
            keys.append(read_parquet(path, _KEYS.names).cast(_KEYS))
        except (ValueError, pa.ArrowException) as error:
            log.warning("%s is corrupt or truncated: %s", path, str(error).splitlines()[0])
    counts = pa.concat_tables(keys).group_by("device").aggregate([(name, "count_distinct") for name in _KEYS.names[1:]])
    rows = sorted(row for row in zip(*counts.to_pydict().values(), strict=True) if row[0])
    return {device: (programs, tasks) for device, programs, tasks in rows}


def record_ids(folder: Path) -> set[str]:
    """Return the ids of all records, from one column; ``DataError`` names a part that is damaged."""
    ids = set[str]()
    for path in record_parts(folder):
        table = _typed(path, read_table(path), RECORD_SCHEMA, ("record_id",))
        ids.update(table.column("record_id").to_pylist())
    return ids


def write_tasks(folder: Path, tasks: Iterable[Task]) -> None:
    """Add ``tasks`` to ``tasks.parquet``; a task that is there already keeps its workload, the networks are united.

    The workload stays because the block names in the traces of its records refer to it. Columns that this
    version does not know are kept.
    """
    path = Path(folder) / "tasks.parquet"
    with writing(folder, "tasks", wait=True):
        rows, extra = {}, []
        if path.exists():
            table = read_table(path)
            extra = [field for field in table.schema if field.name not in _TASK_SCHEMA.names]
            rows = {row["task_id"]: row for row in table.to_pylist()}
        for task in tasks:
            old = rows.get(task.task_id, {})
            networks = {**json.loads(old.get("networks") or "{}"), **task.networks}
            new = {**dataclasses.asdict(task), "networks": json.dumps(networks, sort_keys=True)}
            rows[task.task_id] = {**old, **new, "workload": old.get("workload") or task.workload}
        write_table(path, pa.Table.from_pylist(list(rows.values()), schema=pa.schema([*_TASK_SCHEMA, *extra])))


def read_tasks(folder: Path) -> dict[str, Task]:
    """Read the tasks of a data set by task id."""
    path = Path(folder) / "tasks.parquet"
    table = _typed(path, read_table(path), _TASK_SCHEMA, ("task_id", "op_class", "workload", "flops", "io_bytes"))
    tasks: dict[str, Task] = {}
    for number, row in enumerate(table.to_pylist()):
        try:
            networks = {str(k): int(v) for k, v in json.loads(row.get("networks") or "{}").items()}
            values = {name: row[name] for name in _TASK_SCHEMA.names if row.get(name) is not None}
            task = Task(**{"op_name": "", **values, "networks": networks})
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DataError(f"{path} row {number}: {error}") from error
        tasks[task.task_id] = task
    return tasks


def append_records(folder: Path, records: Iterable[Record]) -> Path | None:
    """Write ``records`` as one new part file, atomically, never over another; its path, None where there are none."""
    rows = [row_of_record(record) for record in records]
    if not rows:
        return None
    table = pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)
    with writing(folder, "records", wait=True):
        while True:
            parts = record_parts(folder)
            number = int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 0
            path = Path(folder) / "records" / f"part-{number:05d}.parquet"
            with suppress(FileExistsError):  # by a writer that does not know the lock, such as an older version
                write_table(path, table, new=True)
                return path


def replace_records(folder: Path, records: Iterable[Record]) -> int:
    """Put ``records`` in the place of those with the same id and device, part by part; returns how many were found.

    Each part is written whole or not at all: a kill leaves older and newer records, never none or two of one.
    """
    new = {(record.record_id, record.device): row_of_record(record) for record in records}
    replaced: set[tuple[str, str]] = set()
    with writing(folder, "better records", wait=True):
        for path in record_parts(folder) if new else []:
            table = read_table(path)
            rows = [((row["record_id"], row["device"]), row) for row in table.to_pylist()]
            if touched := {key for key, _ in rows} & new.keys():
                replaced |= touched
                better = [{**row, **new.get(key, {})} for key, row in rows]
                write_table(path, pa.Table.from_pylist(better, schema=table.schema))
    return len(replaced)


def check_record(record: Record) -> None:
    """Raise ``DataError`` for a record that is not written: without an id, or with a latency that cannot be."""
    if reason := _fault(record):
        raise DataError(f"record {record.record_id or '(no id)'} for {record.device}: {reason}")


def row_of_record(record: Record) -> dict[str, Any]:
    """Return the row of ``RECORD_SCHEMA`` that a record is; ``DataError`` as ``check_record``."""
    check_record(record)
    return {**vars(record), "extra": json.dumps(record.extra, sort_keys=True)}


def read_records(
    folder: Path, device: str | None = None, on_bad: OnBad = "error", parts: Sequence[Path] | None = None
) -> list[Record]:
    """Read all parts (or ``parts``) in writing order, each record once, those of ``device`` where given.

    Rows of the same record id and device become one: copies are dropped, differing ones united by ``merge_records``,
    and a log line counts both where there are copies, or measurements that disagree (see ``agreement``). A part or row
    that cannot be used is named by file and number: it raises a ``DataError``, or with ``on_bad="skip"`` it is logged
    and left out. Columns that this version does not know land in ``extra``.
    """
    records = read_rows(folder, device, on_bad, parts)
    once, dropped, merged = each_once(records)
    if dropped or merged:
        text = f"{folder} holds records twice: {dropped} copies dropped, {merged} programs merged"
        if differing := conflicts(records):
            text += (
                f"; {len(differing)} pairs disagree, first {differing[0]}. `cdmpp data merge {folder} --out FOLDER` "
                "lists them all, and keeps those that you choose"
            )
        told = log.warning if dropped or differing else log.debug
        told("%s", text)
    return once


def read_rows(
    folder: Path, device: str | None = None, on_bad: OnBad = "error", parts: Sequence[Path] | None = None
) -> list[Record]:
    """Read as ``read_records`` does, but every row: several hosts may have measured one program."""
    return list(each_row(folder, device, on_bad, parts))


def each_row(
    folder: Path, device: str | None = None, on_bad: OnBad = "error", parts: Iterable[Path] | None = None
) -> Iterator[Record]:
    """Yield what ``read_rows`` reads, a few thousand rows in memory; what cannot be used is told after the last one."""
    faults: list[str] = []
    for path in record_parts(folder) if parts is None else parts:
        before = 0
        try:
            for batch in table_batches(path):
                table = _typed(path, batch, RECORD_SCHEMA, _REQUIRED)
                unknown = [name for name in table.column_names if name not in RECORD_SCHEMA.names]
                for number, row in enumerate(table.to_pylist(), start=before):
                    try:
                        record = record_of_row(row, unknown)
                    except (TypeError, ValueError, AttributeError, RecursionError) as error:
                        faults.append(f"{path} row {number}: {error}")
                        continue
                    if device is None or record.device == device:
                        yield record
                before += len(table)
        except DataError as error:
            if on_bad == "error":
                raise
            faults.append(str(error))
    if faults and on_bad == "error":
        raise DataError(f"{len(faults)} unusable rows: {some(faults)}. Pass on_bad='skip' to leave them out")
    if faults:
        log.warning("left out %d unusable rows: %s", len(faults), some(faults))


def _typed(path: Path, table: pa.Table, schema: pa.Schema, names: Iterable[str]) -> pa.Table:
    """``table`` with its known columns in the types of ``schema``; all of ``names`` must be there, each once."""
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise DataError(f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(table.column_names)}")
    for place, name in enumerate(table.column_names):
        if name in schema.names:
            try:
                table = table.set_column(place, name, table.column(place).cast(schema.field(name).type))
            except (pa.ArrowException, UnicodeDecodeError) as error:
                kind, wanted = table.schema.field(place).type, schema.field(name).type
                raise DataError(f"{path}: column {name} of type {kind} cannot be read as {wanted}") from error
    return table


def record_of_row(row: dict[str, Any], unknown: Sequence[str] = ()) -> Record:
    """Return the record that a row is, columns of ``unknown`` names in its ``extra``.

    ``ValueError``, ``TypeError`` or the like says why there is none.
    """
    extra = {str(k): str(v) for k, v in json.loads(row.get("extra") or "{}").items()}
    extra |= {name: str(row[name]) for name in unknown if row[name] is not None}
    values = {name: row[name] for name in RECORD_SCHEMA.names if row.get(name) is not None}
    samples = tuple(values.get("latency_samples_s", ()))
    empty = dict.fromkeys(_REQUIRED, "")  # _fault names them
    record = Record(**{**empty, **values, "latency_samples_s": samples, "extra": extra})
    if reason := _fault(record):
        raise ValueError(reason)
    return record


def _fault(record: Record) -> str:
    """The reason why a record cannot be used; empty where it can."""
    for name in _REQUIRED[:-1]:
        if not getattr(record, name):
            return f"{name} is empty"
    for name, value in (("latency_s", record.latency_s), *(("a latency sample", v) for v in record.latency_samples_s)):
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            return f"{name} is {value}: must be a positive number of seconds"
    return ""
