"""MetaSchedule database -> data set folder: parts of a few thousand records, resumable after a kill."""

from __future__ import annotations

import json
import logging
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tvm
from rich.progress import track

from cdmpp.data.importers.report import ImportReport, check_on_bad
from cdmpp.data.records import OnBad, append_records, read_info, read_records, read_tasks, write_info, write_tasks
from cdmpp.data.schema import Record
from cdmpp.data.targets import disagreement
from cdmpp.errors import CdmppError, DataError
from cdmpp.platform.lock import writing
from cdmpp.programs.database import BadLine, TuningLine, read_lines, read_workloads
from cdmpp.programs.identity import block_names, flops, io_bytes, op_class, record_id, task_id
from cdmpp.programs.replay import parse_workload, replay_on
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

PART_SIZE = 2000  # records a part file; what a kill can lose
FLAG_SPREAD = 0.05
_SAMPLE = 12  # traces replayed before anything is written
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
    """Import the MetaSchedule database (TVM 0.16 to 0.20 or 0.27) ``source`` as measured on ``device`` into ``out``.

    The whole database is read before anything is written. Broken lines and workloads raise one ``DataError`` with their
    numbers, or are left out and counted with ``on_bad="skip"``. Programs that ``out`` holds are left alone: a rerun
    continues after a kill, a second network can join. While another process writes there, this one waits.
    """
    source, out = Path(source), Path(out)
    if not network:
        raise DataError("network=NAME is missing: by_network splits go by the name of the network that was tuned")
    check_on_bad(on_bad)
    report = ImportReport()
    modules = read_workloads(source)
    workloads = [_workload(module, number, network, source) for number, module in enumerate(modules, start=1)]
    groups = _collect(source, workloads, device, report, progress)
    report.judge(source, on_bad, len(groups))
    _check_replay(groups, source)
    write_programs(out, [(g.task, _record(g, device)) for g in groups], report, source.name, network, progress)
    return report


def write_programs(
    out: Path,
    programs: Sequence[tuple[Task, Record]],
    report: ImportReport,
    source: str,
    network: str | None,
    progress: bool,
) -> None:
    """Add different programs of one device to data set ``out`` and ``report`` it; those that it holds are left alone.

    Traces name the blocks of their own task's workload. ``source`` is a name for ``dataset.json``. While another
    process writes there, this one waits.
    """
    device = programs[0][1].device
    with writing(out, f"import of {source}", wait=True):
        _store(out, programs, report, progress)
        imported = {"device": device, "network": network, "broken": len(report.bad)}
        imported |= {name: getattr(report, name) for name in ("lines", "failed", "unmeasured", "programs")}
        info = read_info(out)
        write_info(
            out,
            devices=sorted({*info.get("devices", []), device}),
            imports={**info.get("imports", {}), source: imported},
            counts={"records": len(read_records(out)), "tasks": len(read_tasks(out))},
            complete=True,
        )


def _store(out: Path, programs: Sequence[tuple[Task, Record]], report: ImportReport, progress: bool) -> None:
    """Write the programs that ``out`` does not hold."""
    present = {record.record_id for record in read_records(out)}
    used = {task.task_id: task for task, _ in reversed(programs)}
    tasks = {**used, **(read_tasks(out) if (out / "tasks.parquet").exists() else {})}
    fresh = []
    for task, own in programs:
        record = identified(own, task.workload, tasks[task.task_id].workload)
        if record.record_id not in present:
            present.add(record.record_id)
            fresh.append(record)
    report.programs, report.tasks, report.present = len(programs), len(used), len(programs) - len(fresh)
    if fresh or not (out / "dataset.json").exists():
        write_info(out, name=out.name, protocol=programs[0][1].protocol, complete=False)
    write_tasks(out, used.values())
    for start in track(range(0, len(fresh), PART_SIZE), "writing records", disable=not progress):
        part = fresh[start : start + PART_SIZE]
        append_records(out, part)
        report.written += len(part)


def identified(record: Record, own: str, stored: str) -> Record:
    """Give ``record`` its id; name blocks of its ``own`` workload as in the equal one that is ``stored``."""
    schedule = record.schedule
    if schedule.startswith("[") and (renames := {} if own == stored else _renames(own, stored)):
        instructions, decisions = json.loads(schedule)
        for instruction in instructions:
            if instruction[0] == "GetSBlock":
                instruction[2][0] = renames.get(instruction[2][0], instruction[2][0])
        schedule = json.dumps([instructions, decisions], sort_keys=True, separators=(",", ":"))
    identity = record_id(record.task_id, record.device, record.target, schedule)
    return replace(record, record_id=identity, schedule=schedule)


@lru_cache(maxsize=1024)
def _renames(own: str, stored: str) -> dict[str, str]:
    names = block_names(parse_workload(own)), block_names(parse_workload(stored))
    return {name: other for name, other in zip(*names, strict=False) if name != other}


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
    """The workload with its task, or the reason why it cannot be one; ``number`` is its line."""
    if isinstance(module, BadLine):
        return module
    try:
        return module, task_of(module, module.script(), f"metaschedule:{source.name}", network)
    except CdmppError as error:
        return BadLine(number, str(error))


def task_of(module: tvm.IRModule, workload: str, origin: str, network: str | None, name: str = "") -> Task:
    """Return the task that ``module``, as text ``workload``, is; named by its blocks where there is no ``name``.

    ``UnsupportedProgramError``: not one PrimFunc, or a symbolic shape.
    """
    name = name or "_".join(name for name in block_names(module) if "pad" not in name)[:80]
    networks = {network: 1} if network else {}
    kind, work = op_class(name, module), (flops(module), io_bytes(module))
    return Task(task_id(module), name, kind, workload, *work, networks, origin)


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


def _record(group: _Group, device: str) -> Record:
    """Without its id."""
    samples = tuple(value for repeat in group.repeats for value in repeat)
    median = statistics.median(samples)
    # Repeats within one visit agree to 0.02 %; what separates visits is the noise that matters.
    visits = [statistics.median(repeat) for repeat in group.repeats] if len(group.repeats) > 1 else samples
    spread = float(np.std(visits) / np.mean(visits))
    return Record(
        "",
        group.task.task_id,
        device,
        group.line.target,
        group.line.schedule,
        samples,
        median,
        statistic="median",
        latency_min_s=min(samples),
        latency_median_s=median,
        spread=spread,
        n_merged=len(group.repeats),
        flagged=spread > FLAG_SPREAD,
        protocol="metaschedule",
        extra={"line": str(group.line.number)},
    )
