"""Feature files of old TVM environments -> data sets with ``ansor164`` leaf vectors. No TVM here.

TenSet and the published sets of CDMPP hold Ansor records and pickles that no current TVM reads.
``scripts/exporters/export_ansor.py`` runs inside their environment and writes Parquet files with one row a program:

==================  =============  ============================================================================
column              type           meaning
==================  =============  ============================================================================
latency_s           double         mean over the repeats, seconds
std_s               double         standard deviation over the repeats; null where unknown
device              string         a name of ``conf/device``
network             string         network that the task was taken from
task                string         what identifies the task there, such as Ansor's workload key
op_name             string         name of the operator, may be empty
flops               double         of the task; null or negative where unknown
leaf_features       list<float>    n_leaf x 164, Ansor's per-store vector, already logarithmic
node_ids            list<int32>    (n_leaf,) pre-order index of each leaf among the tree nodes
serialized_tree     list<int32>    node ids in pre-order, -1 after the children of each; may be empty
==================  =============  ============================================================================

and ``cdmpp_feature_file: ansor164-1`` in the metadata.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cdmpp import devices
from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import FEATURES, KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.ast.table import AstTable, write_asts
from cdmpp.data.importers.kept_rows import KeptProgram, KeptRows
from cdmpp.data.importers.report import ImportReport
from cdmpp.data.records import OnBad, append_records, read_info, record_ids, write_info, write_tasks
from cdmpp.data.schema import Record
from cdmpp.errors import DataError, some
from cdmpp.platform.content import parquet_batches, read_parquet
from cdmpp.platform.lock import writing
from cdmpp.programs.task import Task

NAME = "ansor164"
WIDTH = 164
METADATA_KEY = b"cdmpp_feature_file"
COLUMNS = (
    "latency_s", "std_s", "device", "network", "task", "op_name", "flops",
    "leaf_features", "node_ids", "serialized_tree",
)  # fmt: skip
PART_SIZE = 20_000  # programs a part file; what a kill can lose
_LISTS = {"leaf_features": pa.float32(), "node_ids": pa.int32(), "serialized_tree": pa.int32()}
_TEXTS = ("network", "task", "op_name")
_SCHEMA = pa.schema(
    [(name, pa.list_(_LISTS[name]) if name in _LISTS else pa.string() if name in _TEXTS else pa.float64())
     for name in COLUMNS if name != "device"]
)  # fmt: skip


class _Row(NamedTuple):
    record: Record
    task: Task
    ast: CompactAST


def import_features(path: Path, out: Path, device: str, on_bad: OnBad = "error") -> ImportReport:
    """Import the rows of ``device`` from a feature file, or all ``*.parquet`` of a folder, into data set ``out``.

    Every file is read before anything is written; programs that ``out`` holds are left alone. While another process
    writes there, this one waits. ``DataError``: no feature file, no row of the device, or broken rows unless skipped.
    """
    sheet = devices.get(device)
    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths:
        raise DataError(f"{path} holds no *.parquet: write some with scripts/exporters/export_ansor.py")
    if (out / "dataset.json").exists() and read_info(out).get("features", "cdmpp") != NAME:
        raise DataError(f"{out} is a data set of other features; choose another out=")
    report, others = ImportReport(), 0
    tasks, places = dict[str, Task](), dict[str, int]()
    with closing(KeptRows(_SCHEMA, _TEXTS)) as kept:
        for where, values in _rows(paths):
            if values.get("device") != device:
                others += 1
                continue
            report.lines += 1
            try:
                record, task, _ = _row(values, sheet)
            except (ValueError, TypeError, KeyError) as error:
                report.bad.append(f"{where}: {error}")
                continue
            networks = tasks[task.task_id].networks if task.task_id in tasks else {}
            places.setdefault(task.task_id, len(places))
            tasks[task.task_id] = replace(task, networks={**networks, **task.networks})
            kept.append(record.record_id, places[task.task_id], record.latency_samples_s, values)
        if report.bad and on_bad == "error":
            raise DataError(
                f"{len(report.bad)} broken rows, nothing was imported: {some(report.bad)}. "
                "Pass on_bad=skip to leave them out"
            )
        if not len(kept):
            raise DataError(
                f"{path} has no usable row of device {device}: {report.lines + others} rows, {others} of other devices"
            )
        known = list(tasks.values())
        used = {known[number].task_id: known[number] for number in kept.tasks}
        report.programs, report.tasks = len(kept), len(used)
        with writing(out, f"import of {path.name}", wait=True):
            present = record_ids(out)
            _without_orphans(out, present)
            write_info(out, name=out.name, devices=[device], features=NAME, protocol=NAME, complete=False)
            write_tasks(out, used.values())
            united = (_united(program, sheet) for program in kept.programs())
            fresh = (row for row in united if row.record.record_id not in present)
            while part := list(islice(fresh, PART_SIZE)):
                _append(out, part)
                report.written += len(part)
            write_info(out, programs=len(present) + report.written, complete=True)
    report.present = report.programs - report.written
    return report


def _append(out: Path, part: list[_Row]) -> None:
    parts = sorted((out / "asts").glob("part-*.parquet"))
    number = int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 0
    # Vectors first: a record without its vector could not be derived again.
    ids, asts = [row.record.record_id for row in part], AstTable.from_asts(row.ast for row in part)
    write_asts(out / "asts" / f"part-{number:05d}.parquet", ids, asts, NAME)
    append_records(out, [row.record for row in part])


def _without_orphans(out: Path, present: set[str]) -> None:
    """Delete vectors without records: an import was killed between the two."""
    for path in sorted((out / "asts").glob("part-*.parquet"))[-1:]:
        if present.isdisjoint(read_parquet(path, ["record_id"]).column("record_id").to_pylist()):
            path.unlink()


def _rows(paths: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in paths:
        batches = parquet_batches(path)
        schema = next(batches).schema
        version = (schema.metadata or {}).get(METADATA_KEY, b"").decode("utf-8", "replace")
        missing = [name for name in COLUMNS if name not in schema.names]
        if version != FEATURES[NAME] or missing:
            raise DataError(
                f"{path} is no feature file of version {FEATURES[NAME]}: metadata says {version or 'nothing'}, "
                f"missing columns: {', '.join(missing) or 'none'}"
            )
        rows = (row for batch in batches for row in batch.to_pylist())
        yield from ((f"{path} row {number}", values) for number, values in enumerate(rows, start=1))


def _row(values: dict[str, Any], device: devices.Device) -> _Row:
    """One program; ``ValueError`` says what is wrong with it."""
    latency, std = values["latency_s"], values["std_s"] or 0.0
    if latency is None or not 0 < latency < float("inf"):
        raise ValueError(f"latency_s is {latency}: must be a positive number of seconds")
    if not values["task"] or not values["network"]:
        raise ValueError("task and network must not be empty")
    flat = np.asarray(values["leaf_features"] or [], np.float32)
    nodes = np.asarray(values["node_ids"] or [], np.int32)
    if len(nodes) == 0 or len(flat) != WIDTH * len(nodes):
        raise ValueError(f"{len(flat)} leaf numbers for {len(nodes)} leaves: {WIDTH} each and at least one leaf needed")
    if not np.isfinite(flat).all():
        raise ValueError("a leaf vector holds a number that is not finite")
    leaves = np.zeros((len(nodes), LEAF_WIDTH), np.float32)
    leaves[:, :WIDTH] = flat.reshape(-1, WIDTH)
    task_id = hashlib.sha256(f"ansor:{values['task']}".encode()).hexdigest()[:16]
    identity = hashlib.sha256(flat.tobytes() + nodes.tobytes()).hexdigest()[:16]
    flops = values["flops"] if values["flops"] and values["flops"] > 0 else 0.0
    task = Task(task_id, values["op_name"] or "", "other", values["task"], flops, 0.0, {values["network"]: 1}, "ansor")
    record_id = hashlib.sha256(f"{task_id}:{device.name}:{identity}".encode()).hexdigest()[:16]
    target, schedule, spread = json.dumps(device.target, sort_keys=True), f"ansor164:{identity}", std / latency
    record = Record(
        record_id, task_id, device.name, target, schedule, (latency,), latency, "mean", spread=spread, protocol=NAME
    )
    places, kind = _serial_positions(nodes, values["serialized_tree"] or []), "cpu" if device.kind == "cpu" else "gpu"
    leaf_kernels, kernels = np.zeros(len(nodes), np.int32), np.zeros((1, KERNEL_WIDTH), np.float32)
    ast = CompactAST(leaves, nodes, places, leaf_kernels, kernels, kind, extractor_version=FEATURES[NAME])
    return _Row(record, task, ast)


def _serial_positions(nodes: np.ndarray, tree: list[int]) -> np.ndarray:
    """Index of each leaf in the serialised tree; the pre-order index where no tree was exported."""
    if not tree:
        return nodes
    place = {node: index for index, node in enumerate(tree) if node >= 0}
    try:
        return np.array([place[node] for node in nodes.tolist()], np.int32)
    except KeyError as error:
        raise ValueError(f"leaf {error} is not in serialized_tree") from error


def _united(program: KeptProgram, sheet: devices.Device) -> _Row:
    """The same vectors measured several times: one program with the mean of all."""
    row = _row(program.row, sheet)
    if (merged := len(program.repeats)) == 1:
        return row
    samples = tuple(latency for (latency,) in program.repeats)
    mean = float(np.mean(samples))
    spread = float(np.std(samples) / mean)
    record = replace(row.record, latency_samples_s=samples, latency_s=mean, spread=spread, n_merged=merged)
    return row._replace(record=record)
