"""Programs that were measured elsewhere -> data set folder: files of JSON lines, each TVMScript with its latency."""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from rich.progress import track

from cdmpp import devices
from cdmpp.data.importers.databases import FLAG_SPREAD, identified, task_of, write_programs
from cdmpp.data.importers.kept_rows import KeptProgram, KeptRows
from cdmpp.data.importers.report import ImportReport, check_on_bad
from cdmpp.data.importers.restored_lines import RestoredLines
from cdmpp.data.merge import merge_records
from cdmpp.data.records import RECORD_SCHEMA, OnBad, record_of_row, row_of_record
from cdmpp.data.schema import Record
from cdmpp.data.targets import disagreement
from cdmpp.errors import DataError
from cdmpp.execute.executor import in_order, is_here, replies_of
from cdmpp.execute.work import Work
from cdmpp.platform.content import lines_of, parse_json
from cdmpp.platform.workers import Reply, Request
from cdmpp.programs.database import FAILED_SECONDS
from cdmpp.programs.identity import canonical_json
from cdmpp.programs.legacy import convert_trace
from cdmpp.programs.replay import parse_target, parse_workload, replay_on
from cdmpp.programs.task import Task
from cdmpp.version import __version__

COMMAND = ("-m", "cdmpp.data.importers.worker")
PROTOCOL = "tvmscript"
_LIMIT_S = 600.0
"""Longest seconds for restoring a program on a cluster."""
EMPTY_TRACE = "[[],[]]"
_TEXTS = ("tvmscript", "workload", "task", "network", "name", "measured_at")
_FIELDS = (*_TEXTS, "trace", "latency_s", "latency_samples_s", "target", "software")


def import_programs(
    source: Path, out: Path, device: str, network: str | None = None, on_bad: OnBad = "error", progress: bool = True
) -> ImportReport:
    """Import JSON lines, a file or all ``*.jsonl[.gz]`` of a folder, as measured on ``device`` into ``out``.

    A line holds ``tvmscript`` (a scheduled program) or ``workload`` and ``trace``, and ``latency_s`` in seconds or
    ``latency_samples_s`` or both; docs/data.md names the other fields. ``network`` is for lines that name none.
    Every file is read and every program restored before anything is written. Broken lines raise one ``DataError`` with
    their places, or are left out and counted with ``on_bad="skip"``; a program for another kind of device always raises
    one. Lines of one program become one record. Programs that ``out`` holds are left alone, and lines that a run which
    did not end restored are not restored again, so a rerun continues.
    """
    source, out = Path(source), Path(out)
    check_on_bad(on_bad)
    report, sheet = ImportReport(), devices.get(device)
    tasks, places = dict[str, Task](), dict[str, int]()
    asked = {"op": "program", "device": device, "origin": f"{PROTOCOL}:{source.name}", "network": network}
    with (
        RestoredLines(tvm.__version__, __version__, str(source.resolve()), json.dumps(asked)) as restored,
        closing(_programs(source, asked, restored)) as programs,
        closing(KeptRows(RECORD_SCHEMA, ["device", "target", "software"])) as kept,
    ):
        for path, number, found in track(programs, f"reading {source.name}", disable=not progress):
            report.lines += 1
            if "record" not in found:
                report.failed += "failed" in found
                if reason := found.get("bad") or found.get("message") or found.get("cause"):
                    report.bad.append(f"{path} line {number}: {reason}")
                continue
            task, record = Task(**found["task"]), Record(**found["record"])
            if reason := disagreement(sheet, record.target):
                raise DataError(f"{path} line {number} is not of device {device}: {reason}")
            first = tasks.get(task.task_id, task)
            places.setdefault(task.task_id, len(places))
            tasks[task.task_id] = replace(first, networks={**first.networks, **task.networks})
            record = replace(record, extra={"file": path.name, "line": str(number)})
            record = identified(record, task.workload, first.workload)
            numbers = (record.latency_s, *record.latency_samples_s)
            kept.append(record.record_id, places[task.task_id], numbers, row_of_record(record))
        report.judge(source, on_bad, len(kept))
        known = list(tasks.values())
        own = [known[number] for number in kept.tasks]
        records = map(_united, kept.programs())
        write_programs(out, device, own, records, report, source.name, network, progress)
    return report


def _united(program: KeptProgram) -> Record:
    """The record of all lines of a program."""
    first = record_of_row(program.row)
    record = merge_records(
        [
            replace(first, latency_s=label, latency_samples_s=tuple(samples), latency_min_s=min(samples))
            for label, *samples in program.repeats
        ]
    )
    return replace(record, flagged=record.spread > FLAG_SPREAD)


def read_program(request: Request) -> Reply:
    """Restore the program of a ``line`` that was measured on ``device``: its task and its record without an id.

    The reply has why it is ``bad`` in place of them, or that its measurement ``failed``.
    """
    try:
        values = _checked(request["line"].encode("utf-8", "surrogateescape"))
        samples = _samples(values)
        if max(samples) >= FAILED_SECONDS:
            return {"failed": True}
        task, record = _reader(request["device"], request["origin"], request["network"]).program(values, samples)
    except ValueError as error:  # a CdmppError is one
        return {"bad": str(error)}
    return {"task": asdict(task), "record": asdict(record)}


@lru_cache(maxsize=1)
def _reader(device: str, origin: str, network: str | None) -> _Reader:
    return _Reader(devices.get(device), origin, network)


def _programs(source: Path, asked: Request, restored: RestoredLines) -> Generator[tuple[Path, int, Reply]]:
    """Yield what ``read_program`` says of each line, in their order: from an earlier run, here, or on a cluster."""

    def asking(line: bytes) -> Request:
        return {**asked, "line": line.decode("utf-8", "surrogateescape")}

    def requests() -> Iterator[Request]:
        return (asking(line) for _, _, line in _lines(source) if line not in restored)

    if is_here():
        replies: Generator[Reply] = (read_program(request) for request in requests())
    else:
        work = Work(COMMAND, _LIMIT_S, 1)
        replies = in_order(replies_of(work, requests(), sum(1 for _ in requests())))
    with closing(replies):
        for path, number, line in _lines(source):
            if line in restored:
                yield path, number, restored[line] or read_program(asking(line))
                continue
            reply = next(replies)
            if "cause" not in reply:  # else it is of the cluster, or for lack of time
                restored.add(line, reply)
            yield path, number, reply


def _lines(source: Path) -> Iterator[tuple[Path, int, bytes]]:
    """Every line that is not blank, with its file and number; ``DataError`` names a file that cannot be read."""
    paths = [source]
    if source.is_dir():
        paths = sorted(path for path in source.iterdir() if path.name.endswith((".jsonl", ".jsonl.gz")))
    if not paths:
        raise DataError(f"{source} holds no *.jsonl and no *.jsonl.gz")
    for path in paths:
        yield from ((path, number, line) for number, line in lines_of(path))


def _checked(line: bytes) -> dict[str, Any]:
    """The fields that are given; ``ValueError`` for unknown and missing ones, and for texts that are none."""
    try:
        values = parse_json(line)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object with fields among {', '.join(_FIELDS)}")
    values = {name: value for name, value in values.items() if value is not None}
    if unknown := [name[:60] for name in values if name not in _FIELDS]:
        raise ValueError(f"unknown fields {', '.join(unknown)}; known: {', '.join(_FIELDS)}")
    if ("tvmscript" in values) == bool({"workload", "trace"} & set(values)):
        raise ValueError("expected either tvmscript (a scheduled program), or workload and trace")
    if ("workload" in values) != ("trace" in values):
        raise ValueError(f"{'trace' if 'workload' in values else 'workload'} is missing")
    if "task" in values and "trace" in values:
        raise ValueError("task is for tvmscript: the task of a trace is its workload")
    for name in _TEXTS:
        value = values.get(name, "text")
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{name} is {str(value)[:60]!r}: must be a text")
    return values


def _samples(values: dict[str, Any]) -> tuple[float, ...]:
    """The measurements in seconds; the one latency where there are no others."""
    samples, stated = values.get("latency_samples_s"), values.get("latency_s")
    if samples is None and stated is None:
        raise ValueError("latency_s and latency_samples_s are missing: one of them is needed")
    if samples is None:
        return (_seconds("latency_s", stated),)
    if not isinstance(samples, list) or not samples:
        raise ValueError(f"latency_samples_s is {str(samples)[:60]}: must be a list of seconds")
    seconds = tuple(_seconds("latency_samples_s", value) for value in samples)
    # The likeliest slip is another unit in one of the two fields.
    if stated is not None and not 0.99 * min(seconds) <= _seconds("latency_s", stated) <= 1.01 * max(seconds):
        raise ValueError(f"latency_s is {stated}, outside its samples {min(seconds):g} to {max(seconds):g}")
    return seconds


def _seconds(name: str, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{name} holds {str(value)[:60]}: must be a positive number of seconds")
    return float(value)


@dataclass
class _Reader:
    """Turns lines into programs of one device."""

    device: devices.Device
    origin: str
    network: str | None

    def program(self, values: dict[str, Any], samples: tuple[float, ...]) -> tuple[Task, Record]:
        """Read a record without its id. ``ValueError``: the program cannot be restored, or a field cannot be used."""
        text = values.get("tvmscript") or values["workload"]
        schedule = _schedule(values["trace"]) if "trace" in values else EMPTY_TRACE
        task = _task(text, self.origin, values.get("network", self.network), values.get("name", ""))
        if "task" in values:  # many programs, one task: the record holds the program
            task_id = hashlib.sha256(f"task:{values['task']}".encode()).hexdigest()[:16]
            task, schedule = replace(task, task_id=task_id), text
        target = values.get("target", self.device.target)
        if not isinstance(target, dict):
            raise ValueError(f"target is {str(target)[:60]!r}: must be a mapping, as tvm.target.Target takes it")
        parse_target(target)
        replay_on(parse_workload(text), schedule)
        median = statistics.median(samples)
        record = Record(
            "",
            task.task_id,
            self.device.name,
            canonical_json(json.dumps(target)),
            schedule,
            samples,
            float(values.get("latency_s", median)),
            statistic="given" if "latency_s" in values else "median",
            latency_min_s=min(samples),
            latency_median_s=median,
            spread=float(np.std(samples) / np.mean(samples)),
            protocol=PROTOCOL,
            software=json.dumps(values["software"], sort_keys=True) if "software" in values else "",
            measured_at=_utc(values["measured_at"]) if "measured_at" in values else "",
        )
        return task, record


@lru_cache(maxsize=1024)
def _task(text: str, origin: str, network: str | None, name: str) -> Task:
    """Many lines share one."""
    return task_of(parse_workload(text), text, origin, network, name)


def _schedule(trace: Any) -> str:
    """The trace as JSON, an older one in the spelling of TVM 0.27."""
    try:
        return json.dumps(convert_trace(trace), sort_keys=True, separators=(",", ":"))
    except (ValueError, TypeError) as error:
        raise ValueError("trace is no [instructions, decisions] of [name, inputs, attributes, outputs]") from error


def _utc(text: str) -> str:
    """Without a zone it is UTC already."""
    try:
        when = datetime.fromisoformat(text)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return when.astimezone(UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError) as error:
        raise ValueError(f"measured_at is {text[:60]!r}: must be a time as in 2026-01-31T12:00:00Z") from error
