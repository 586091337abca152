"""MetaSchedule database -> data set folder: parts of a few thousand records, resumable after a kill."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
from cdmpp.programs.database import BadLine, TuningLine, is_legacy, read_lines, read_workloads
from cdmpp.programs.identity import block_names, flops, io_bytes, op_class, record_id, task_id
from cdmpp.programs.replay import parse_workload, replay_on
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

PART_SIZE = 2000
"""Records a part file; what a kill can lose."""
_SAMPLE = 12  # traces replayed before anything is written
_FLAG_SPREAD = 0.05


@dataclass(frozen=True)
class _Workload:
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
    source_format: Literal["auto", "metaschedule", "metaschedule_legacy"] = "auto",
    on_bad: Literal["error", "skip"] = "error",
    progress: bool = True,
) -> ImportReport:
    """Import the MetaSchedule database in folder ``source`` as measured on ``device``, into data set ``out``.

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
    _check_format(source, source_format)
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
    known = read_tasks(out) if (out / "tasks.parquet").exists() else {}
    used = {group.workload.task.task_id: group.workload.task for group in reversed(groups)}
    stored = {**used, **known}
    renames: dict[int, dict[str, str]] = {}  # by workload: two of one task may name their blocks differently
    fresh = []
    for group in groups:
        index, task = group.line.workload, group.workload.task
        if index not in renames:
            renames[index] = _renames(group.workload.module, stored[task.task_id])
        schedule = _rename_blocks(group.line.schedule, renames[index])
        identity = record_id(task.task_id, device, group.line.target, schedule)
        if identity in present:
            report.present += 1
            continue
        present.add(identity)
        fresh.append((identity, task.task_id, schedule, group))
    report.programs, report.tasks = len(groups), len(used)
    origin = {"name": out.name, "protocol": "metaschedule", "complete": False}
    write_info(out, **({} if not fresh and (out / "dataset.json").exists() else origin))
    write_tasks(out, used.values())
    parts = [fresh[start : start + PART_SIZE] for start in range(0, len(fresh), PART_SIZE)]
    for part in track(parts, "writing records", disable=not progress):
        append_records(out, (_record(*item, device=device) for item in part))
        report.written += len(part)


def reclassify(folder: Path) -> int:
    """Compute class, operations and bytes of every stored task anew; returns how many classes changed.

    For data sets written before a rule changed. Records and identities stay as they are.
    """
    changed, tasks = 0, []
    with writing(folder, "new classes of tasks", wait=True):
        for task in read_tasks(folder).values():
            module = parse_workload(task.workload)
            kind = op_class(task.op_name, module)
            changed += kind != task.op_class
            tasks.append(dataclasses.replace(task, op_class=kind, flops=flops(module), io_bytes=io_bytes(module)))
        write_tasks(folder, tasks)
    return changed


def _check_format(source: Path, source_format: str) -> None:
    if source_format == "auto":
        return
    found = "metaschedule_legacy" if is_legacy(source) else "metaschedule"
    if source_format not in ("metaschedule", "metaschedule_legacy"):
        raise DataError(f"unknown source {source_format!r}: choose metaschedule or metaschedule_legacy")
    if found != source_format:
        raise DataError(f"{source} holds source={found}, not {source_format}: pass source={found}")


def _collect(
    source: Path, workloads: list[_Workload | BadLine], device: str, report: ImportReport, progress: bool
) -> list[_Group]:
    groups: dict[tuple[int, str, str], _Group] = {}
    targets: dict[str, str] = {}
    lines: Iterator[TuningLine | BadLine] = iter(
        track(read_lines(source), f"reading {source.name}", disable=not progress)
    )
    for line in lines:
        report.lines += 1
        if isinstance(line, BadLine):
            report.bad.append(line)
            continue
        if not 0 <= line.workload < len(workloads):
            reason = f"workload {line.workload} does not exist, the database has {len(workloads)}"
            report.bad.append(BadLine(line.number, reason))
            continue
        workload = workloads[line.workload]
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


def _renames(module: tvm.IRModule, task: Task | None) -> dict[str, str]:
    """Block names of ``module`` -> those of the stored workload of the same task, where they differ."""
    if task is None:
        return {}
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
    info: dict[str, Any] = read_info(out)
    imports = {**info.get("imports", {})}
    imports[source.name] = {
        "device": device,
        "network": network,
        "lines": report.lines,
        "failed": report.failed,
        "unmeasured": report.unmeasured,
        "broken": len(report.bad),
        "programs": report.programs,
    }
    devices = sorted({*info.get("devices", []), device})
    counts = {"records": len(_present(out)), "tasks": len(read_tasks(out))}
    write_info(out, devices=devices, imports=imports, counts=counts, complete=True)
