"""Measured PyTorch operators of NeuSight (ASPLOS 2025) -> data set folder: a row of its tables a program.

The program is an un-scheduled tensor program that PyTorch served with a kernel of its own choice: its schedule names
that runtime instead of a trace. The published parts are the networks of its tasks: ``by_network+test_networks:
neusight_test`` learns from random shapes and is tested on those of transformers.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.progress import track

from cdmpp import devices
from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.table import AstTable, write_asts
from cdmpp.data.derive_worker import unpacked
from cdmpp.data.importers.neusight_convolutions import without_time_added
from cdmpp.data.importers.neusight_source import data_folder, read_files
from cdmpp.data.merge import each_once
from cdmpp.data.records import append_records, read_info, record_parts, write_info, write_tasks
from cdmpp.data.schema import Record
from cdmpp.errors import DataError, UnsupportedProgramError
from cdmpp.execute.executor import replies_of
from cdmpp.execute.work import FOREVER_S, Work
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_task import operator_task, record_id, served_by, task_id
from cdmpp.operators.operator_vector import operator_program
from cdmpp.platform.files import read_table
from cdmpp.platform.lock import writing
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)
T = TypeVar("T")

COMMAND = ("-m", "cdmpp.data.importers.worker")
PROTOCOL = "neusight"
RUNTIME = "torch"
FEATURES_KIND = "library"
SCHEDULE = served_by(RUNTIME)
_NAMES = {
    "conv": "conv2d",
    "ln": "layer_norm",
    **{f"{name}u": f"{name}_scalar" for name in ("add", "mul", "pow", "div")},
}
_SIZES = {"linear": ("rows", "inner", "cols"), "bmm": ("batch", "rows", "inner", "cols")}
_CONV = ("batch", "in_channels", "out_channels", "in_size", "stride", "padding")
_COLUMNS = (
    *("device", "op", "dtype", "batch", "rows", "inner", "cols", "in_channels", "out_channels", "kernel_size"),
    *("in_size", "stride", "padding", "latency_s", "kernel", "torch", "cudnn", "split", "source_line"),
)
_PART, _TOGETHER = 50_000, 256


@dataclass
class OperatorReport:
    """An import of operators met and wrote these counts."""

    rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> number of rows."""
    programs: int = 0
    tasks: int = 0
    devices: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lost = "".join(f"; {number} left out: {why}" for why, number in self.left_out.items())
        each = ", ".join(f"{name} {number}" for name, number in self.devices.items())
        return f"{self.rows} rows: {self.programs} programs of {self.tasks} operators ({each}){lost}"


def import_neusight(
    source: Path, out: Path, workers: int = 2, progress: bool = True, device: str | None = None
) -> OperatorReport:
    """Import the measurements in ``source`` into ``out``; what a stopped import left there is replaced.

    Rows that are known to be wrong are left out and counted, labels of convolutions set right
    (``neusight_convolutions``).

    Args:
        source: ``ops.parquet``, the folder that holds it, or a copy of NeuSight's repository (see ``neusight_source``).
        device: only its rows; None: those of all.

    Raises:
        DataError: no such file, or another table.
    """
    path, folder = Path(source), data_folder(Path(source))
    if folder is None and path.is_dir():
        path = path / "ops.parquet"
    rows = read_files(folder, device) if folder else _rows(path, device)
    report = OperatorReport()
    tasks: dict[str, Task] = {}
    operators: dict[str, EagerOperator] = {}
    records: list[Record] = []
    targets: dict[str, str] = {}
    for row in track(rows, f"reading {path.name}", disable=not progress):
        report.rows += 1
        if reason := _known_fault(row):
            report.left_out[reason] += 1
            continue
        try:
            operator = _operator(row)
        except UnsupportedProgramError as error:
            report.left_out[str(error)[:80]] += 1
            continue
        except TypeError:
            report.left_out[f"a size of a {row['op']} is missing"] += 1
            continue
        key = task_id(operator)
        network = f"neusight_{row['split']}"
        if key not in tasks:
            tasks[key], operators[key] = operator_task(operator, network, PROTOCOL), operator
        tasks[key].networks[network] = 1
        if (name := row["device"]) not in targets:
            targets[name] = json.dumps(devices.get(name).target, sort_keys=True, separators=(",", ":"))
        records.append(_record(row, key, targets[name]))
    records, mostly_added = without_time_added(records, operators)
    report.left_out += mostly_added
    records = each_once(records)[0]
    if not records:
        raise DataError(f"{path} holds no operator that this cdmpp knows: {dict(report.left_out)}")
    kept = {record.task_id for record in records}
    tasks = {key: task for key, task in tasks.items() if key in kept}
    operators = {key: operators[key] for key in tasks}
    report.programs, report.tasks = len(records), len(tasks)
    report.devices = dict(sorted(Counter(record.device for record in records).items()))
    _write(out, path, report, tasks, operators, records, workers, progress)
    return report


def _rows(path: Path, device: str | None) -> Iterator[dict[str, Any]]:
    table = read_table(path)
    if missing := sorted(set(_COLUMNS) - set(table.column_names)):
        raise DataError(f"{path} lacks the columns {', '.join(missing)}: not NeuSight's ops.parquet")
    for batch in table.select(list(_COLUMNS)).to_batches(max_chunksize=_PART):
        yield from (row for row in batch.to_pylist() if device in (None, row["device"]))


def _known_fault(row: dict[str, Any]) -> str:
    """The reason why a row says nothing about its device; empty where it does."""
    seconds = row["latency_s"]
    if seconds is None or not 0 < seconds < math.inf:
        return "the latency is no positive number"
    if row["device"] == "p4" and row["op"] == "linear" and row["split"] == "train":
        return "the card was throttled threefold (P4, linear, train)"
    return ""


def _operator(row: dict[str, Any]) -> EagerOperator:
    name = _NAMES.get(row["op"], row["op"])
    if name == "conv2d":
        sizes = {**{size: int(row[size]) for size in _CONV}, "kernel": int(row["kernel_size"])}
    else:
        sizes = {size: int(row[size]) for size in _SIZES.get(name, ("rows", "cols"))}
    return EagerOperator(name, sizes, row["dtype"])


def _record(row: dict[str, Any], key: str, target: str) -> Record:
    seconds = float(row["latency_s"])
    identity = record_id(key, row["device"], target, SCHEDULE)
    software = {name: row[name] for name in ("torch", "cudnn") if row[name]}
    extra = {
        "split": row["split"],
        "line": str(row["source_line"]),
        **({"kernel": row["kernel"]} if row["kernel"] else {}),
    }
    return Record(
        identity, key, row["device"], target, SCHEDULE, (seconds,), seconds, "given", seconds, seconds,
        protocol=PROTOCOL, software=json.dumps(software, sort_keys=True), extra=extra,
    )  # fmt: skip


def _write(
    out: Path,
    path: Path,
    report: OperatorReport,
    tasks: dict[str, Task],
    operators: dict[str, EagerOperator],
    records: Sequence[Record],
    workers: int,
    progress: bool,
) -> None:
    with writing(out, f"import of {path}", wait=True):
        if (out / "dataset.json").exists():
            info = read_info(out)
            if info.get("complete") or info.get("protocol") != PROTOCOL:
                raise DataError(f"{out} is a data set already: remove it, or give out=ANOTHER")
            for stopped in record_parts(out):  # of an import that did not end
                stopped.unlink()
        write_info(out, name=out.name, protocol=PROTOCOL, features=FEATURES_KIND, complete=False)
        asts = dict(zip(operators, _asts(list(operators.values()), workers, progress), strict=True))
        write_tasks(out, tasks.values())
        for number, part in enumerate(_slices(records, _PART)):
            append_records(out, part)
            table = AstTable.from_asts(asts[record.task_id] for record in part)
            names = [record.record_id for record in part]
            write_asts(out / "asts" / f"part-{number:05d}.parquet", names, table, FEATURES_KIND)
        counts = {"records": len(records), "tasks": len(tasks)}
        write_info(out, devices=list(report.devices), counts=counts, left_out=dict(report.left_out), complete=True)


def _slices(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _asts(operators: list[EagerOperator], workers: int, progress: bool) -> list[CompactAST]:
    parts = _slices([operator.to_json() for operator in operators], _TOGETHER)
    requests = ({"op": "operators", "operators": part} for part in parts)
    found = dict[int, AstTable]()
    with closing(replies_of(Work(COMMAND, FOREVER_S, workers), requests, len(parts))) as replies:
        for index, reply in track(replies, "compact ASTs", total=len(parts), disable=not progress):
            if "cause" in reply:
                raise DataError(f"the compact ASTs of operators cannot be made: {reply.get('message', reply['cause'])}")
            found[index] = AstTable(**unpacked(reply["arrays"]))
    return [found[index][place] for index in range(len(parts)) for place in range(len(parts[index]))]


def asts_of(operators: Sequence[str]) -> list[CompactAST]:
    """Make the compact AST of each operator, which is JSON."""
    return [operator_program(EagerOperator.from_json(text), "gpu") for text in operators]
