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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rich.progress import track

from cdmpp import devices
from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.mapped_table import MappedTableWriter
from cdmpp.ast.table import AstTable, write_asts
from cdmpp.data.derive_worker import unpacked
from cdmpp.data.importers.kept_rows import KeptProgram, KeptRows
from cdmpp.data.importers.neusight_convolutions import MOSTLY_ADDED, ConvolutionTimes, without_added
from cdmpp.data.importers.neusight_source import data_folder, read_files
from cdmpp.data.merge import merge_records
from cdmpp.data.records import (
    RECORD_SCHEMA,
    append_records,
    read_info,
    read_rows,
    record_of_row,
    record_parts,
    row_of_record,
    write_info,
    write_tasks,
)
from cdmpp.data.schema import Record
from cdmpp.errors import DataError, UnsupportedProgramError
from cdmpp.execute.executor import in_order, replies_of
from cdmpp.execute.work import FOREVER_S, Work
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_task import operator_task, record_id, served_by, task_id
from cdmpp.operators.operator_vector import operator_program
from cdmpp.platform.cache import working_files
from cdmpp.platform.files import table_batches
from cdmpp.platform.lock import writing
from cdmpp.platform.paths import cache_root
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

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
    """Import the measurements in ``source`` into ``out``; what a stopped import of the same left there is kept.

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
    report, convolutions = OperatorReport(), ConvolutionTimes()
    operators, networks = dict[str, EagerOperator](), dict[str, dict[str, int]]()
    places, targets = dict[str, int](), dict[str, str]()
    with closing(KeptRows(RECORD_SCHEMA, ["device", "target", "software"])) as kept:
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
            operators.setdefault(key, operator)
            networks.setdefault(key, {})[f"neusight_{row['split']}"] = 1
            if (name := row["device"]) not in targets:
                targets[name] = json.dumps(devices.get(name).target, sort_keys=True, separators=(",", ":"))
            record = _record(row, key, targets[name])
            number, numbers = places.setdefault(key, len(places)), (record.latency_s,)
            place = kept.append(f"{record.record_id}\n{name}", number, numbers, row_of_record(record))
            if operator.name == "conv2d":
                convolutions.append(place, record, operator)
        added, mostly_added = convolutions.added()
        kept.leave_out(mostly_added)
        report.left_out += +Counter({MOSTLY_ADDED: len(mostly_added)})
        if not len(kept):
            raise DataError(f"{path} holds no operator that this cdmpp knows: {dict(report.left_out)}")
        used = set(kept.tasks)
        operators = {key: operator for key, operator in operators.items() if places[key] in used}
        tasks = (replace(operator_task(one, "", PROTOCOL), networks=networks[key]) for key, one in operators.items())
        report.programs, report.tasks = len(kept), len(operators)
        records = (_united(program, added) for program in kept.programs())
        _write(out, path, report, tasks, operators, records, workers, progress)
    return report


def _united(program: KeptProgram, added: Mapping[int, float]) -> Record:
    """The record of all rows of a program, without what was ``added`` to each."""
    first, group = record_of_row(program.row), []
    for place, (latency_s,) in zip(program.places, program.repeats, strict=True):
        samples = {"latency_s": latency_s, "latency_min_s": latency_s, "latency_median_s": latency_s}
        record = replace(first, latency_samples_s=(latency_s,), **samples)  # type: ignore[arg-type]
        group.append(without_added(record, added[place]) if place in added else record)
    return merge_records(group)


def _rows(path: Path, device: str | None) -> Iterator[dict[str, Any]]:
    for number, table in enumerate(table_batches(path)):
        if number == 0 and (missing := sorted(set(_COLUMNS) - set(table.column_names))):
            raise DataError(f"{path} lacks the columns {', '.join(missing)}: not NeuSight's ops.parquet")
        yield from (row for row in table.select(list(_COLUMNS)).to_pylist() if device in (None, row["device"]))


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
    tasks: Iterable[Task],
    operators: dict[str, EagerOperator],
    records: Iterator[Record],
    workers: int,
    progress: bool,
) -> None:
    with writing(out, f"import of {path}", wait=True):
        if (out / "dataset.json").exists():
            info = read_info(out)
            if info.get("complete") or info.get("protocol") != PROTOCOL:
                raise DataError(f"{out} is a data set already: remove it, or give out=ANOTHER")
        write_info(out, name=out.name, protocol=PROTOCOL, features=FEATURES_KIND, complete=False)
        write_tasks(out, tasks)
        asts, rows = _asts(list(operators.values()), workers, progress), {key: i for i, key in enumerate(operators)}
        found, number = Counter[str](), 0
        while part := list(islice(records, _PART)):
            _put(out, number, part, asts, [rows[record.task_id] for record in part])
            found.update(record.device for record in part)
            number += 1
        _remove(out, number)
        report.devices = dict(sorted(found.items()))
        counts = {"records": report.programs, "tasks": report.tasks}
        write_info(out, devices=list(report.devices), counts=counts, left_out=dict(report.left_out), complete=True)


def _put(out: Path, number: int, part: list[Record], asts: AstTable, rows: list[int]) -> None:
    """Write a part of the records and their vectors, ``rows`` of ``asts``, unless a stopped import wrote the same."""
    stored = record_parts(out)[number : number + 1]
    if not stored or read_rows(out, parts=stored, on_bad="skip") != part:
        _remove(out, number)
        append_records(out, part)
    vectors = out / "asts" / f"part-{number:05d}.parquet"
    if not vectors.exists():
        write_asts(vectors, [record.record_id for record in part], asts.take(rows), FEATURES_KIND)


def _remove(out: Path, number: int) -> None:
    """Delete the parts from ``number`` on."""
    for path in (*record_parts(out)[number:], *sorted((out / "asts").glob("part-*.parquet"))[number:]):
        path.unlink()


def _asts(operators: list[EagerOperator], workers: int, progress: bool) -> AstTable:
    """The compact ASTs of operators, in their order, in mapped files."""
    starts = range(0, len(operators), _TOGETHER)
    parts = (operators[start : start + _TOGETHER] for start in starts)
    requests = ({"op": "operators", "operators": [operator.to_json() for operator in part]} for part in parts)
    work = Work(COMMAND, FOREVER_S, workers)
    with working_files(), closing(in_order(replies_of(work, requests, len(starts)))) as replies:
        writer = MappedTableWriter(cache_root() / "mapped")
        for reply in track(replies, "compact ASTs", total=len(starts), disable=not progress):
            if "cause" in reply:
                raise DataError(f"the compact ASTs of operators cannot be made: {reply.get('message', reply['cause'])}")
            writer.append(AstTable(**unpacked(reply["arrays"])))
        return writer.finish()


def asts_of(operators: Sequence[str]) -> list[CompactAST]:
    """Make the compact AST of each operator, which is JSON."""
    return [operator_program(EagerOperator.from_json(text), "gpu") for text in operators]
