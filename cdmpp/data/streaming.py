"""Data sets too large for memory: labels as arrays, compact ASTs in mapped files, one stored part at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdmpp.ast.spool import AstSpool
from cdmpp.ast.table import AstTable, read_asts
from cdmpp.data.codes import read_code_files
from cdmpp.data.dataset import (
    MAX_FAILED,
    LatencyDataset,
    ast_cache,
    features_of,
    join_tasks,
    load_folders,
)
from cdmpp.data.derive import Wanted, chunk_paths, derive, failures, record_keys, sources_of
from cdmpp.data.merge import merge_records
from cdmpp.data.records import count_records, read_info, read_records, read_tasks, record_parts
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.machine_code.code_vector import CODE_WIDTH
from cdmpp.paths import cache_root
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

STREAM_ABOVE = 100_000
"""Records of a data set that is read from mapped files instead of memory, where a hundred of them take 1.5 MB."""
_LABELS = ("record_id", "task_id", "device", "latency_s", "spread")


def load_programs(
    folders: Sequence[Path],
    device: str | None = None,
    on_bad: Literal["error", "skip"] = "error",
    workers: int = 2,
    progress: bool = True,
) -> LatencyDataset:
    """As ``load_folders``, by mapped files where the folders hold more than ``STREAM_ABOVE`` records of ``device``."""
    counts = [count_records(folder) for folder in folders]
    total = sum(sum(c.values()) if device is None else c.get(device, 0) for c in counts)
    load = load_streamed if total > STREAM_ABOVE else load_folders
    return load(folders, device, on_bad, workers, progress)


def load_streamed(
    folders: Sequence[Path],
    device: str | None = None,
    on_bad: Literal["error", "skip"] = "error",
    workers: int = 2,
    progress: bool = True,
) -> LatencyDataset:
    """The same programs as ``load_folders``, in the order of the files that hold their ASTs.

    Per program memory holds ids, label and offsets, some hundred bytes; ASTs and code vectors are in files below the
    cache, deleted with the data set. Raises as ``load_folders`` does.
    """
    folders = [Path(folder) for folder in folders]
    kinds = sorted({features_of(read_info(folder)) for folder in folders})
    if len(kinds) > 1:
        raise DataError(f"data sets of different features cannot be joined: {', '.join(kinds)}")
    tasks = join_tasks([read_tasks(folder) for folder in folders])
    labels = _Labels.of(folders, device, on_bad)
    if lost := sorted(set(np.unique(labels.task_ids).tolist()) - set(tasks)):
        raise DataError(f"records name {len(lost)} tasks that tasks.parquet lacks, first {lost[0]}")
    spool, order = AstSpool(cache_root() / "spool"), list[np.ndarray]()
    codes = _codes(folders, labels, spool) if kinds[0] == "cdmpp" else None
    taken = np.zeros(len(labels), bool)
    for folder in folders:
        for table, places in _stored(folder, device, kinds[0], labels, taken, workers, progress):
            if codes is not None:
                table = table.with_codes(codes[places])
            spool.append(table)
            order.append(places)
    if not taken.all():
        text = f"no compact AST for {np.sum(~taken)} of {len(taken)} records, first {labels.record_ids[~taken][0]}"
        if np.mean(~taken) > MAX_FAILED:
            raise DataError(f"{', '.join(map(str, folders))}: {text}")
        log.warning("%s; they are left out", text)
    rows = np.concatenate(order)
    used = set(np.unique(labels.task_ids).tolist())
    return LatencyDataset(
        labels.record_ids[rows],
        labels.task_ids[rows],
        labels.devices[rows],
        labels.latency_s[rows],
        labels.spread[rows],
        spool.finish(),
        {key: task for key, task in tasks.items() if key in used},
        ", ".join(str(folder) for folder in folders),
        kinds[0],
    )


@dataclass(frozen=True)
class _Labels:
    """Of n different programs, sorted by record id."""

    record_ids: np.ndarray
    task_ids: np.ndarray
    devices: np.ndarray
    latency_s: np.ndarray
    spread: np.ndarray

    def __len__(self) -> int:
        return len(self.record_ids)

    @staticmethod
    def of(folders: Sequence[Path], device: str | None, on_bad: Literal["error", "skip"]) -> _Labels:
        parts = [_read_labels(path, folder, on_bad) for folder in folders for path in record_parts(folder)]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else []
        there = sorted(set(columns[2].tolist())) if parts else []
        if device is not None and parts:
            mine = columns[2] == device
            columns = [column[mine] for column in columns]
        if not parts or not len(columns[0]):
            raise DataError(
                f"{', '.join(map(str, folders))} has no records of device {device or '(any)'}; "
                f"it has records of: {', '.join(there) or 'none at all'}"
            )
        ids, first, counts = np.unique(columns[0], return_index=True, return_counts=True)
        ids, task_ids, devices, latency_s, spread = (column[first] for column in columns)
        found = _Labels(ids, task_ids, devices, latency_s, spread)
        if (counts > 1).any():
            found._unite(set(ids[counts > 1].tolist()), folders, device, on_bad)
        return found

    def places(self, record_ids: Sequence[str]) -> np.ndarray:
        """(m,) where they stand, -1 for those that are not here."""
        wanted = np.asarray(record_ids, dtype=str)
        at = np.minimum(np.searchsorted(self.record_ids, wanted), len(self) - 1)
        return np.where(self.record_ids[at] == wanted, at, -1)

    def _unite(self, repeated: set[str], folders: Sequence[Path], device: str | None, on_bad) -> None:
        groups: dict[str, list[Record]] = {identity: [] for identity in repeated}
        for folder in folders:
            for record in read_records(folder, device, on_bad):
                if record.record_id in groups:
                    groups[record.record_id].append(record)
        for identity, group in groups.items():
            place, merged = self.places([identity])[0], merge_records(group)
            self.latency_s[place], self.spread[place] = merged.latency_s, merged.spread


@dataclass(frozen=True)
class _Keys:
    """The same n programs by the names that derived files give them."""

    labels: _Labels
    keys: list[str]
    """(n,) ``derive.record_key``; empty where the folder does not describe the task."""

    @staticmethod
    def of(labels: _Labels, tasks: Mapping[str, Task]) -> _Keys:
        known = np.isin(labels.task_ids, list(tasks))
        ids, task_ids = labels.record_ids[known].tolist(), labels.task_ids[known].tolist()
        keys = np.full(len(labels), "", object)
        keys[known] = record_keys(ids, task_ids, tasks)
        return _Keys(labels, keys.tolist())

    def places(self, names: Sequence[str]) -> np.ndarray:
        """(m,) where they stand, -1 for those that are not here or of another workload."""
        at = self.labels.places([name.rpartition("-")[0] for name in names])
        return np.array([p if p >= 0 and self.keys[p] == n else -1 for p, n in zip(at, names, strict=True)], np.int64)


def _read_labels(path: Path, folder: Path, on_bad: Literal["error", "skip"]) -> tuple[np.ndarray, ...]:
    """Columns ``_LABELS`` of one part. Where something is wrong with it the slow reader says what."""
    try:
        schema = pq.read_schema(path)
        table = pq.read_table(path, columns=[name for name in _LABELS if name in schema.names])
        spread = table.column("spread") if "spread" in table.column_names else pa.nulls(len(table), pa.float64())
        texts = [table.column(name).to_numpy(zero_copy_only=False) for name in _LABELS[:3]]
        latency = table.column("latency_s").to_numpy(zero_copy_only=False).astype(np.float64)
        good = np.isfinite(latency) & (latency > 0)
        for column in texts:
            good &= np.array([bool(text) for text in column], bool)
        if good.all():
            spreads = np.nan_to_num(spread.to_numpy(zero_copy_only=False).astype(np.float64))
            return (*(column.astype(str) for column in texts), latency, spreads)
    except (OSError, KeyError, pa.ArrowException):
        pass
    rows = read_records(folder, None, on_bad, [path])
    return (
        *(np.array([getattr(row, name) for row in rows], dtype=str) for name in _LABELS[:3]),
        np.array([row.latency_s for row in rows], np.float64),
        np.array([row.spread for row in rows], np.float64),
    )


def _stored(
    folder: Path, device: str | None, features: str, labels: _Labels, taken: np.ndarray, workers: int, progress: bool
) -> Iterator[tuple[AstTable, np.ndarray]]:
    """(ASTs, their places in ``labels``) of each file of ``folder``; sets ``taken``. What is missing is derived."""
    shipped = sorted((folder / "asts").glob("part-*.parquet"))
    if features != "cdmpp":
        yield from _new(shipped, features, labels, taken)
        return
    yield from _new(shipped, features, labels, taken)
    if taken.all():
        return
    cache, tasks = ast_cache(folder), read_tasks(folder)
    names, known = _Keys.of(labels, tasks), chunk_paths(cache)
    yield from _new(known, features, names, taken)
    failed = failures(cache)
    missing: dict[str, Record] = {}
    for path in record_parts(folder) if not taken.all() else ():
        for record in read_records(folder, device, "skip", [path]):
            place = labels.places([record.record_id])[0]
            if place >= 0 and not taken[place] and names.keys[place] not in failed:
                missing[record.record_id] = record
    if missing:
        wanted = Wanted("asts", cache, sources_of(missing.values(), tasks))
        derive([wanted], workers, progress, f"compact ASTs of {folder.name}")
        yield from _new([path for path in chunk_paths(cache) if path not in set(known)], features, names, taken)


def _new(
    paths: Sequence[Path], features: str, labels: _Labels | _Keys, taken: np.ndarray
) -> Iterator[tuple[AstTable, np.ndarray]]:
    for path in paths:
        try:
            ids, table = read_asts(path, features)
        except DataError as error:  # another version, or damaged: derived again
            log.warning("%s", error)
            continue
        places = labels.places(ids)
        fresh = np.flatnonzero((places >= 0) & ~taken[places])
        fresh = fresh[np.sort(np.unique(places[fresh], return_index=True)[1])]
        if len(fresh):
            taken[places[fresh]] = True
            yield table.take(fresh), places[fresh]


def _codes(folders: Sequence[Path], labels: _Labels, spool: AstSpool) -> np.ndarray | None:
    """(n, CODE_WIDTH) in a file beside the ASTs, NaN rows where there is none; None where no program has one."""
    codes: np.ndarray | None = None
    for folder in folders:
        names: _Keys | None = None
        for found, keyed in read_code_files(folder):
            if not found:
                continue
            if codes is None:
                path = Path(spool.folder.name) / "codes-by-id"
                codes = np.memmap(path, np.float32, "w+", shape=(len(labels), CODE_WIDTH))
                codes[:] = np.nan
            if keyed:
                names = names or _Keys.of(labels, read_tasks(folder))
            places, rows = (names if keyed and names else labels).places(list(found)), np.stack(list(found.values()))
            codes[places[places >= 0]] = rows[places >= 0]
    return codes
