"""MetaSchedule database -> data set folder: parts of a few thousand records, resumable after a kill."""

from __future__ import annotations

import json
import logging
import random
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, lru_cache, partial
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import tvm
from rich.progress import track

from cdmpp.data.importers.kept_rows import KeptProgram, KeptRows
from cdmpp.data.importers.report import ImportReport, check_on_bad
from cdmpp.data.records import (
    OnBad,
    append_records,
    count_records,
    read_info,
    read_tasks,
    record_ids,
    write_info,
    write_tasks,
)
from cdmpp.data.schema import Record
from cdmpp.data.targets import disagreement
from cdmpp.errors import CdmppError, DataError
from cdmpp.platform.lock import writing
from cdmpp.programs.database import BadLine, read_lines, read_workloads
from cdmpp.programs.identity import block_names, flops, io_bytes, op_class, record_id, task_id
from cdmpp.programs.replay import parse_workload, replay_on
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

PART_SIZE = 2000  # records a part file; what a kill can lose
FLAG_SPREAD = 0.05
_SAMPLE = 12  # traces replayed before anything is written
_SCHEMA = pa.schema(
    [("number", pa.int64()), ("workload", pa.int64()), ("target", pa.string()), ("schedule", pa.string())]
)


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
    with closing(KeptRows(_SCHEMA, ["target"])) as kept:
        _collect(kept, source, workloads, device, report, progress)
        report.judge(source, on_bad, len(kept))
        _check_replay(kept, modules, source)
        known = {number: task for number, task in enumerate(workloads) if isinstance(task, Task)}
        tasks = [known[number] for number in kept.tasks]
        records = (_record(one, task, device) for task, one in zip(tasks, kept.programs(), strict=True))
        write_programs(out, device, tasks, records, report, source.name, network, progress)
    return report


def write_programs(
    out: Path,
    device: str,
    tasks: Sequence[Task],
    records: Iterable[Record],
    report: ImportReport,
    source: str,
    network: str | None,
    progress: bool,
) -> None:
    """Add different programs of one device to data set ``out`` and ``report`` it; those that it holds are left alone.

    Each of the ``records``, which are read once, belongs to the task at its place; its trace names the blocks of that
    task's workload. ``source`` is a name for ``dataset.json``. While another process writes there, this one waits.
    """
    with writing(out, f"import of {source}", wait=True):
        _store(out, tasks, records, report, progress)
        imported = {"device": device, "network": network, "broken": len(report.bad)}
        imported |= {name: getattr(report, name) for name in ("lines", "failed", "unmeasured", "programs")}
        info = read_info(out)
        write_info(
            out,
            devices=sorted({*info.get("devices", []), device}),
            imports={**info.get("imports", {}), source: imported},
            counts={"records": sum(n for n, _ in count_records(out).values()), "tasks": len(read_tasks(out))},
            complete=True,
        )


def _store(out: Path, tasks: Sequence[Task], records: Iterable[Record], report: ImportReport, progress: bool) -> None:
    """Write the programs that ``out`` does not hold."""
    used = {task.task_id: task for task in reversed(tasks)}
    stored = read_tasks(out) if (out / "tasks.parquet").exists() else {}
    report.programs, report.tasks = len(tasks), len(used)
    shown = track(records, "writing records", total=len(tasks), disable=not progress)
    fresh = _fresh(zip(tasks, shown, strict=True), {**used, **stored}, record_ids(out), report)
    while part := list(islice(fresh, PART_SIZE)):
        if not report.written:
            write_info(out, name=out.name, protocol=part[0].protocol, complete=False)
            write_tasks(out, used.values())
        append_records(out, part)
        report.written += len(part)
    if not report.written:  # networks may be new
        write_tasks(out, used.values())


def _fresh(
    programs: Iterable[tuple[Task, Record]], tasks: Mapping[str, Task], present: set[str], report: ImportReport
) -> Iterator[Record]:
    """Yield the records that are not ``present``, identified; the others are counted. ``tasks`` are those stored."""
    for task, own in programs:
        record = identified(own, task.workload, tasks[task.task_id].workload)
        if record.record_id in present:
            report.present += 1
        else:
            present.add(record.record_id)
            yield record


def identified(record: Record, own: str, stored: str) -> Record:
    """Give ``record`` its id; name blocks of its ``own`` workload as in the equal one that is ``stored``.

    Its target and trace are spelled as ``canonical_json`` does.
    """
    schedule = record.schedule
    if schedule.startswith("[") and (renames := {} if own == stored else _renames(own, stored)):
        instructions, decisions = json.loads(schedule)
        for instruction in instructions:
            if instruction[0] == "GetSBlock":
                instruction[2][0] = renames.get(instruction[2][0], instruction[2][0])
        schedule = json.dumps([instructions, decisions], sort_keys=True, separators=(",", ":"))
    identity = record_id(record.task_id, record.device, record.target, schedule, canonical=True)
    return replace(record, record_id=identity, schedule=schedule)


@lru_cache(maxsize=1024)
def _renames(own: str, stored: str) -> dict[str, str]:
    names = block_names(parse_workload(own)), block_names(parse_workload(stored))
    return {name: other for name, other in zip(*names, strict=False) if name != other}


def _collect(
    kept: KeptRows, source: Path, workloads: list[Task | BadLine], device: str, report: ImportReport, progress: bool
) -> None:
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
            key = f"{line.workload}\n{line.target}\n{line.schedule}"
            kept.append(key, line.workload, line.seconds, {name: getattr(line, name) for name in _SCHEMA.names})


def _workload(module: tvm.IRModule | BadLine, number: int, network: str, source: Path) -> Task | BadLine:
    """The task of a workload, or the reason why it cannot be one; ``number`` is its line."""
    if isinstance(module, BadLine):
        return module
    try:
        return task_of(module, module.script(), f"metaschedule:{source.name}", network)
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


def _check_replay(kept: KeptRows, modules: Sequence[tvm.IRModule | BadLine], source: Path) -> None:
    """Replay a few traces: a database of another TVM version would fail on all of them."""
    sample, faults = random.Random(0).sample(range(len(kept)), min(_SAMPLE, len(kept))), []
    for row, _, _ in kept.programs(sample):
        try:
            replay_on(modules[row["workload"]], row["schedule"])
        except CdmppError as error:
            faults.append(f"line {row['number']}: {str(error).splitlines()[0][:200]}")
    if len(faults) == len(sample):
        raise DataError(f"none of {len(sample)} sampled traces of {source} replays in this TVM: {faults[0]}")
    if faults:
        log.warning("%d of %d sampled traces of %s do not replay: %s", len(faults), len(sample), source, faults)


def _record(program: KeptProgram, task: Task, device: str) -> Record:
    """Without its id."""
    row, repeats, _ = program
    samples = tuple(value for repeat in repeats for value in repeat)
    median = statistics.median(samples)
    # Repeats within one visit agree to 0.02 %; what separates visits is the noise that matters.
    visits = [statistics.median(repeat) for repeat in repeats] if len(repeats) > 1 else samples
    spread = float(np.std(visits) / np.mean(visits))
    return Record(
        "",
        task.task_id,
        device,
        row["target"],
        row["schedule"],
        samples,
        median,
        statistic="median",
        latency_min_s=min(samples),
        latency_median_s=median,
        spread=spread,
        n_merged=len(repeats),
        flagged=spread > FLAG_SPREAD,
        protocol="metaschedule",
        extra={"line": str(row["number"])},
    )
