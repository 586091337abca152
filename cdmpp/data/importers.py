"""MetaSchedule database -> data set folder: parts of a few thousand records, resumable after a kill."""

from __future__ import annotations

import json
import logging
import random
import statistics
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tvm
from rich.progress import track

from cdmpp.data.import_report import ImportReport
from cdmpp.data.records import OnBad, append_records, read_info, read_records, read_tasks, write_info, write_tasks
from cdmpp.data.schema import Record
from cdmpp.data.targets import disagreement
from cdmpp.errors import CdmppError, DataError
from cdmpp.lock import writing
from cdmpp.programs.database import BadLine, TuningLine, read_lines, read_workloads
from cdmpp.programs.identity import block_names, flops, io_bytes, op_class, record_id, task_id
from cdmpp.programs.replay import parse_workload, replay_on
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

PART_SIZE = 2000  # records a part file; what a kill can lose
_SAMPLE = 12  # traces replayed before anything is written
_FLAG_SPREAD = 0.05
_Workload = tuple[tvm.IRModule, Task] | BadLine


class _Group(NamedTuple):
    """Repeats of one program."""

    module: tvm.IRModule
    task: Task
    line: TuningLine
    repeats: list[tuple[float, ...]]


def import_database(
    source: Path, out: Path, device: str, network: str, on_bad: OnBad = "error", progress: bool = True
) -> ImportReport:
    """Import the MetaSchedule database (TVM 0.16 or newer) in ``source`` as measured on ``device`` into ``out``.

    The whole database is read before anything is written. Broken lines and workloads raise one ``DataError`` with their
    numbers, or are left out and counted with ``on_bad="skip"``. Programs that ``out`` holds are left alone: a rerun
    continues after a kill, a second network can join. While another process writes there, this one waits.
    """
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
        _store(groups, out, report, progress, device)
        imported = {"device": device, "network": network, "broken": len(report.bad)}
        imported |= {name: getattr(report, name) for name in ("lines", "failed", "unmeasured", "programs")}
        info = read_info(out)
        write_info(
            out,
            devices=sorted({*info.get("devices", []), device}),
            imports={**info.get("imports", {}), source.name: imported},
            counts={"records": len(read_records(out)), "tasks": len(read_tasks(out))},
            complete=True,
        )
    return report


def _store(groups: list[_Group], out: Path, report: ImportReport, progress: bool, device: str) -> None:
    """Write the programs that ``out`` does not hold."""
    present = {record.record_id for record in read_records(out)}
    used = {group.task.task_id: group.task for group in reversed(groups)}
    tasks = {**used, **(read_tasks(out) if (out / "tasks.parquet").exists() else {})}
    renames: dict[int, dict[str, str]] = {}  # by workload: two of one task may name their blocks differently
    fresh = []
    for group in groups:
        index, task_id = group.line.workload, group.task.task_id
        if index not in renames:
            names = block_names(group.module), block_names(parse_workload(tasks[task_id].workload))
            renames[index] = {own: stored for own, stored in zip(*names, strict=False) if own != stored}
        schedule = _rename_blocks(group.line.schedule, renames[index])
        identity = record_id(task_id, device, group.line.target, schedule)
        if identity not in present:
            present.add(identity)
            fresh.append((identity, schedule, group))
    report.programs, report.tasks, report.present = len(groups), len(used), len(groups) - len(fresh)
    if fresh or not (out / "dataset.json").exists():
        write_info(out, name=out.name, protocol="metaschedule", complete=False)
    write_tasks(out, used.values())
    for start in track(range(0, len(fresh), PART_SIZE), "writing records", disable=not progress):
        part = fresh[start : start + PART_SIZE]
        append_records(out, (_record(*item, device) for item in part))
        report.written += len(part)


def _collect(
    source: Path, workloads: list[_Workload], device: str, report: ImportReport, progress: bool
) -> list[_Group]:
    groups: dict[tuple[int, str, str], _Group] = {}
    wrong_target = cache(partial(disagreement, device))
    for line in track(read_lines(source), f"reading {source.name}", disable=not progress):
        report.lines += 1
        if isinstance(line, BadLine):
            report.bad.append(line)
            continue
        workload = workloads[line.workload] if 0 <= line.workload < len(workloads) else None
        if workload is None or isinstance(workload, BadLine):
            reason = f"workload {line.workload} does not exist, the database has {len(workloads)}"
            if workload:
                reason = f"its workload, line {workload.number} of the other file, cannot be used: {workload.reason}"
            report.bad.append(BadLine(line.number, reason))
            continue
        if reason := wrong_target(line.target):
            raise DataError(f"{source} line {line.number} is not of device {device}: {reason}")
        if not line.measured:
            report.unmeasured += 1
        elif line.failed:
            report.failed += 1
        else:
            key = (line.workload, line.target, line.schedule)
            groups.setdefault(key, _Group(*workload, line, [])).repeats.append(line.seconds)
    return list(groups.values())


def _workload(module: tvm.IRModule | BadLine, number: int, network: str, source: Path) -> _Workload:
    """With the task that it is, or why it cannot be one; ``number`` is its line."""
    if isinstance(module, BadLine):
        return module
    try:
        name = "_".join(name for name in block_names(module) if "pad" not in name)[:80]
        work, origin = (flops(module), io_bytes(module)), f"metaschedule:{source.name}"
        return module, Task(task_id(module), name, op_class(name, module), module.script(), *work, {network: 1}, origin)
    except CdmppError as error:
        return BadLine(number, str(error))


def _check_replay(groups: list[_Group], source: Path) -> None:
    """Replay a few traces: a database of another TVM version would fail on all of them."""
    sample, faults = random.Random(0).sample(groups, min(_SAMPLE, len(groups))), []
    for group in sample:
        try:
            replay_on(group.module, group.line.schedule)
        except CdmppError as error:
            faults.append(f"line {group.line.number}: {str(error).splitlines()[0][:200]}")
    if len(faults) == len(sample):
        raise DataError(f"none of {len(sample)} sampled traces of {source} replays in this TVM: {faults[0]}")
    if faults:
        log.warning("%d of %d sampled traces of %s do not replay: %s", len(faults), len(sample), source, faults)


def _rename_blocks(schedule: str, renames: dict[str, str]) -> str:
    if not renames:
        return schedule
    instructions, decisions = json.loads(schedule)
    for instruction in instructions:
        if instruction[0] == "GetSBlock":
            instruction[2][0] = renames.get(instruction[2][0], instruction[2][0])
    return json.dumps([instructions, decisions], sort_keys=True, separators=(",", ":"))


def _record(identity: str, schedule: str, group: _Group, device: str) -> Record:
    samples = tuple(value for repeat in group.repeats for value in repeat)
    median = statistics.median(samples)
    # Repeats within one visit agree to 0.02 %; what separates visits is the noise that matters.
    visits = [statistics.median(repeat) for repeat in group.repeats] if len(group.repeats) > 1 else samples
    spread = float(np.std(visits) / np.mean(visits))
    return Record(
        identity,
        group.task.task_id,
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
