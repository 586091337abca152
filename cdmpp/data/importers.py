"""MetaSchedule database -> data set folder: parts of a few thousand records, resumable after a kill."""

from __future__ import annotations

import json
import logging
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import tvm
from rich.progress import track

from cdmpp.data.import_report import ImportReport
from cdmpp.data.records import (
    append_records,
    read_info,
    read_records,
    read_tasks,
    record_parts,
    write_info,
    write_tasks,
)
from cdmpp.data.schema import Record
from cdmpp.data.targets import disagreement
from cdmpp.errors import CdmppError, DataError
from cdmpp.lock import writing
from cdmpp.programs.database import BadLine, TuningLine, read_lines, read_workloads
from cdmpp.programs.identity import block_names, flops, io_bytes, op_class, record_id, task_id
from cdmpp.programs.replay import parse_workload, replay_on
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

PART_SIZE = 2000
"""Records a part file; what a kill can lose."""
_SAMPLE = 12  # traces replayed before anything is written
_FLAG_SPREAD = 0.05


class _Workload(NamedTuple):
    module: tvm.IRModule
    task: Task


@dataclass
class _Group:
    """Repeats of one program."""

    workload: _Workload
    line: TuningLine
    repeats: list[tuple[float, ...]]


def import_database(
    source: Path,
    out: Path,
    device: str,
    network: str,
    on_bad: Literal["error", "skip"] = "error",
    progress: bool = True,
) -> ImportReport:
    """Import the MetaSchedule database (TVM 0.16 or newer) in ``source`` as measured on ``device`` into ``out``.

    Nothing is written before the whole database has been read. Broken lines, and lines of a workload that cannot be
    used, raise one ``DataError`` with their numbers, or are left out and counted with ``on_bad="skip"``. Programs that
    ``out`` holds already are left alone, so a rerun continues where a kill stopped, and a second network can join the
    same folder. While another process writes there, this one waits.
    """
    started = time.monotonic()
    source, out = Path(source), Path(out)
    if not network:
        raise DataError("network=NAME is missing: by_network splits go by the name of the network that was tuned")
    if on_bad not in ("error", "skip"):
        raise DataError(f"on_bad is {on_bad!r}: choose error or skip")
    report = ImportReport()
    modules = read_workloads(source)
    workloads = [_workload(module, number, network, source) for number, module in enumerate(modules, start=1)]
    groups = _collect(source, workloads, device, report, progress)
    if report.bad and on_bad == "error":
        raise DataError(
            f"{source} has {len(report.bad)} broken lines, nothing was imported: {report.bad_lines()}. "
            "Mend them, or pass on_bad=skip to leave them out"
        )
    if report.bad:
        log.warning("%s: left out %d broken lines: %s", source, len(report.bad), report.bad_lines())
    if not groups:
        raise DataError(
            f"{source} has no successful measurement: {report.lines} lines, {report.failed} failed, "
            f"{report.unmeasured} not measured yet, {len(report.bad)} broken"
        )
    _check_replay(groups, source)
    with writing(out, f"import of {source.name}", wait=True):
        _store(groups, out, source, device, report, progress)
        _finish(out, source, device, network, report)
    report.seconds = time.monotonic() - started
    return report


def _store(groups: list[_Group], out: Path, source: Path, device: str, report: ImportReport, progress: bool) -> None:
    """Write the programs that ``out`` does not hold."""
    present = _present(out)
    used = {group.workload.task.task_id: group.workload.task for group in reversed(groups)}
    tasks = {**used, **(read_tasks(out) if (out / "tasks.parquet").exists() else {})}
    renames: dict[int, dict[str, str]] = {}  # by workload: two of one task may name their blocks differently
    fresh = []
    for group in groups:
        index, task = group.line.workload, group.workload.task
        if index not in renames:
            renames[index] = _renames(group.workload.module, tasks[task.task_id])
        schedule = _rename_blocks(group.line.schedule, renames[index])
        identity = record_id(task.task_id, device, group.line.target, schedule)
        if identity not in present:
            present.add(identity)
            fresh.append((identity, task.task_id, schedule, group))
    report.programs, report.tasks, report.present = len(groups), len(used), len(groups) - len(fresh)
    origin = {"name": out.name, "protocol": "metaschedule", "complete": False}
    write_info(out, **({} if not fresh and (out / "dataset.json").exists() else origin))
    write_tasks(out, used.values())
    parts = [fresh[start : start + PART_SIZE] for start in range(0, len(fresh), PART_SIZE)]
    for part in track(parts, "writing records", disable=not progress):
        append_records(out, (_record(*item, device=device) for item in part))
        report.written += len(part)


def _collect(
    source: Path, workloads: list[_Workload | BadLine], device: str, report: ImportReport, progress: bool
) -> list[_Group]:
    groups: dict[tuple[int, str, str], _Group] = {}
    targets: dict[str, str] = {}
    for line in track(read_lines(source), f"reading {source.name}", disable=not progress):
        report.lines += 1
        if isinstance(line, BadLine):
            report.bad.append(line)
            continue
        workload = workloads[line.workload] if 0 <= line.workload < len(workloads) else None
        if workload is None:
            reason = f"workload {line.workload} does not exist, the database has {len(workloads)}"
            report.bad.append(BadLine(line.number, reason))
            continue
        if isinstance(workload, BadLine):
            reason = f"its workload, line {workload.number} of the other file, cannot be used: {workload.reason}"
            report.bad.append(BadLine(line.number, reason))
            continue
        if line.target not in targets:
            targets[line.target] = disagreement(device, line.target)
        if targets[line.target]:
            raise DataError(f"{source} line {line.number} is not of device {device}: {targets[line.target]}")
        if not line.measured:
            report.unmeasured += 1
        elif line.failed:
            report.failed += 1
        else:
            key = (line.workload, line.target, line.schedule)
            groups.setdefault(key, _Group(workload, line, [])).repeats.append(line.seconds)
    return list(groups.values())


def _workload(module: tvm.IRModule | BadLine, number: int, network: str, source: Path) -> _Workload | BadLine:
    """The task that a workload is, or why it cannot be one; ``number`` is its line."""
    if isinstance(module, BadLine):
        return module
    try:
        names = block_names(module)
        name = "_".join(name for name in names if "pad" not in name)[:80]
        task = Task(
            task_id(module),
            name,
            op_class(name, module),
            module.script(),
            flops(module),
            io_bytes(module),
            {network: 1},
            f"metaschedule:{source.name}",
        )
    except CdmppError as error:
        return BadLine(number, str(error))
    return _Workload(module, task)


def _check_replay(groups: list[_Group], source: Path) -> None:
    """Replay a few traces: a database of another TVM version would fail on all of them."""
    sample = random.Random(0).sample(groups, min(_SAMPLE, len(groups)))
    faults = []
    for group in sample:
        try:
            replay_on(group.workload.module, group.line.schedule)
        except CdmppError as error:
            faults.append(f"line {group.line.number}: {str(error).splitlines()[0][:200]}")
    if len(faults) == len(sample):
        raise DataError(f"none of {len(sample)} sampled traces of {source} replays in this TVM: {faults[0]}")
    if faults:
        log.warning("%d of %d sampled traces of %s do not replay: %s", len(faults), len(sample), source, faults)


def _present(out: Path) -> set[str]:
    """Ids of the records in ``out``; a part that cannot be read stops the import before it writes."""
    return {record.record_id for record in read_records(out)} if record_parts(out) else set()


def _renames(module: tvm.IRModule, task: Task) -> dict[str, str]:
    """Block names of ``module`` -> those of the stored workload of the same task, where they differ."""
    stored = block_names(parse_workload(task.workload))
    return {own: other for own, other in zip(block_names(module), stored, strict=False) if own != other}


def _rename_blocks(schedule: str, renames: dict[str, str]) -> str:
    if not renames:
        return schedule
    instructions, decisions = json.loads(schedule)
    for instruction in instructions:
        if instruction[0] == "GetSBlock":
            instruction[2][0] = renames.get(instruction[2][0], instruction[2][0])
    return json.dumps([instructions, decisions], sort_keys=True, separators=(",", ":"))


def _record(identity: str, task: str, schedule: str, group: _Group, device: str) -> Record:
    samples = tuple(value for repeat in group.repeats for value in repeat)
    median = statistics.median(samples)
    # Repeats within one visit agree to 0.02 %; what separates visits is the noise that matters.
    visits = [statistics.median(repeat) for repeat in group.repeats] if len(group.repeats) > 1 else samples
    spread = float(np.std(visits) / np.mean(visits))
    return Record(
        identity,
        task,
        device,
        group.line.target,
        schedule,
        samples,
        median,
        statistic="median",
        latency_min_s=min(samples),
        latency_median_s=median,
        spread=spread,
        n_merged=len(group.repeats),
        flagged=spread > _FLAG_SPREAD,
        protocol="metaschedule",
        extra={"line": str(group.line.number)},
    )


def _finish(out: Path, source: Path, device: str, network: str, report: ImportReport) -> None:
    info = read_info(out)
    counted = {"lines": report.lines, "failed": report.failed, "unmeasured": report.unmeasured}
    entry = {"device": device, "network": network, **counted, "broken": len(report.bad), "programs": report.programs}
    write_info(
        out,
        devices=sorted({*info.get("devices", []), device}),
        imports={**info.get("imports", {}), source.name: entry},
        counts={"records": len(_present(out)), "tasks": len(read_tasks(out))},
        complete=True,
    )
