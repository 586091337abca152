"""LatencyDataset: labelled programs as arrays, aligned by index. Loading needs TVM only where ASTs are missing."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from cdmpp.ast.layout import EXTRACTOR_VERSION, FEATURES
from cdmpp.ast.spool import concat
from cdmpp.ast.table import AstTable, read_asts, write_asts
from cdmpp.data.codes import codes_for
from cdmpp.data.derive import Wanted, chunk_paths, data_set_folder, derive, failures, record_keys, sources_of
from cdmpp.data.merge import merge_records
from cdmpp.data.records import read_info, read_records, read_tasks
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.paths import cache_root
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

MAX_FAILED = 0.05
"""A larger share of programs without an AST is a fault of the data or of this version, not of single programs."""


@dataclass(frozen=True)
class LatencyDataset:
    """n programs with their label; index i means the same program in every array."""

    record_ids: np.ndarray
    """(n,) str."""
    task_ids: np.ndarray
    """(n,) str, keys of ``tasks``."""
    devices: np.ndarray
    """(n,) str."""
    latency_s: np.ndarray
    """(n,) float64, the label in seconds."""
    spread: np.ndarray
    """(n,) float64, relative noise of the label, see ``Record.spread``."""
    asts: AstTable
    """n compact ASTs."""
    tasks: dict[str, Task]
    source: str
    """Folders it came from."""
    features: str = "cdmpp"
    """What the leaf vectors are, a name in ``layout.FEATURES``."""

    def __post_init__(self) -> None:
        n = len(self.asts)
        for name in ("record_ids", "task_ids", "devices", "latency_s", "spread"):
            if len(getattr(self, name)) != n:
                raise DataError(f"{name} has {len(getattr(self, name))} entries for {n} ASTs")

    def __len__(self) -> int:
        return len(self.record_ids)

    def take(self, indices: Sequence[int] | np.ndarray) -> LatencyDataset:
        """The programs at ``indices`` (positions or a boolean mask), in that order."""
        index = np.asarray(indices)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        task_ids = self.task_ids[index]
        return LatencyDataset(
            self.record_ids[index],
            task_ids,
            self.devices[index],
            self.latency_s[index],
            self.spread[index],
            self.asts.take(index),
            {task: self.tasks[task] for task in sorted(set(task_ids.tolist()))},
            self.source,
            self.features,
        )

    def networks_of(self, index: int) -> tuple[str, ...]:
        """Networks that the program's task occurs in."""
        return tuple(sorted(self.tasks[self.task_ids[index]].networks))

    @property
    def op_classes(self) -> np.ndarray:
        """(n,) str, see ``Task.op_class``."""
        return np.array([self.tasks[task].op_class for task in self.task_ids], dtype=str)


@dataclass(frozen=True)
class _Loaded:
    """One folder's programs before they are joined with others."""

    records: list[Record]
    tasks: dict[str, Task]
    asts: AstTable
    features: str


def load_dataset(
    folder: Path,
    device: str | None = None,
    on_bad: Literal["error", "skip"] = "error",
    workers: int = 2,
    progress: bool = True,
) -> LatencyDataset:
    """The labelled programs of one data set folder, those of ``device`` where given.

    ASTs come from the folder's ``asts/`` or the cache; missing ones are derived with TVM (about 30 programs a
    second and process) and cached in chunks, so that a killed run continues. Raises ``DataError`` where there is
    no usable record.
    """
    return load_folders([folder], device, on_bad, workers, progress)


def load_folders(
    folders: Sequence[Path],
    device: str | None = None,
    on_bad: Literal["error", "skip"] = "error",
    workers: int = 2,
    progress: bool = True,
) -> LatencyDataset:
    """As ``load_dataset`` over several folders. A program that several hold becomes one, its samples united."""
    parts = [_load(Path(folder), device, on_bad, workers, progress) for folder in folders]
    kinds = sorted({part.features for part in parts})
    if len(kinds) > 1:
        raise DataError(f"data sets of different features cannot be joined: {', '.join(kinds)}")
    tasks = join_tasks([part.tasks for part in parts])
    records = [record for part in parts for record in part.records]
    first: dict[str, int] = {}
    repeats: dict[str, list[Record]] = {}
    for position, record in enumerate(records):
        first.setdefault(record.record_id, position)
        repeats.setdefault(record.record_id, []).append(record)
    unique = [merge_records(group) for group in repeats.values()]
    asts = AstTable.concat([part.asts for part in parts])
    if len(unique) != len(records):
        asts = asts.take(list(first.values()))
    used = {record.task_id for record in unique}
    return LatencyDataset(
        np.array([r.record_id for r in unique], dtype=str),
        np.array([r.task_id for r in unique], dtype=str),
        np.array([r.device for r in unique], dtype=str),
        np.array([r.latency_s for r in unique], dtype=np.float64),
        np.array([r.spread for r in unique], dtype=np.float64),
        asts,
        {key: task for key, task in tasks.items() if key in used},
        ", ".join(str(folder) for folder in folders),
        kinds[0],
    )


def join_datasets(parts: Sequence[LatencyDataset]) -> LatencyDataset:
    """The programs of all ``parts`` one after the other, such as those of several devices; a shared task is one.

    Raises:
        DataError: nothing to join, or leaf vectors of different kinds.
    """
    kinds = sorted({part.features for part in parts})
    if len(kinds) != 1:
        raise DataError(f"data sets of different features cannot be joined: {', '.join(kinds) or 'none given'}")
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("record_ids", "task_ids", "devices", "latency_s", "spread")
    }
    return LatencyDataset(
        **arrays,
        asts=concat([part.asts for part in parts], cache_root() / "spool"),
        tasks=join_tasks([part.tasks for part in parts]),
        source=", ".join(dict.fromkeys(part.source for part in parts)),
        features=kinds[0],
    )


def join_tasks(tables: Iterable[Mapping[str, Task]]) -> dict[str, Task]:
    """One table; a task that several hold belongs to the networks of all."""
    tasks: dict[str, Task] = {}
    for table in tables:
        for key, task in table.items():
            networks = {**(tasks[key].networks if key in tasks else {}), **task.networks}
            tasks[key] = dataclasses.replace(tasks.get(key, task), networks=networks)
    return tasks


def ship_asts(folder: Path, device: str | None = None, workers: int = 2) -> Path:
    """Store a data set's ASTs in its ``asts/`` folder, so that users need no TVM to train on it."""
    loaded = _load(Path(folder), device, "error", workers, True)
    path = Path(folder) / "asts" / "part-00000.parquet"
    write_asts(path, [record.record_id for record in loaded.records], loaded.asts, loaded.features)
    return path


def _load(folder: Path, device: str | None, on_bad: Literal["error", "skip"], workers: int, progress: bool) -> _Loaded:
    info = read_info(folder)
    if info.get("complete") is False:
        log.warning("%s is the beginning of an import that did not end: run the import again to complete it", folder)
    tasks = read_tasks(folder)
    everything = read_records(folder, None, on_bad)
    records = [record for record in everything if device in (None, record.device)]
    if not records:
        there = ", ".join(sorted({record.device for record in everything})) or "none at all"
        raise DataError(f"{folder} has no records of device {device or '(any)'}; it has records of: {there}")
    orphans = [record.record_id for record in records if record.task_id not in tasks]
    if orphans:
        raise DataError(f"{folder}: {len(orphans)} records name a task that tasks.parquet lacks, first {orphans[0]}")
    cache, features = ast_cache(folder), features_of(info)
    shipped = sorted((folder / "asts").glob("part-*.parquet"))
    ids = [record.record_id for record in records]
    if features != "cdmpp":  # imported as they are: nothing here could derive them
        stored = stored_asts(shipped, set(ids), features)
        if lost := set(ids) - set(stored):
            raise DataError(f"{folder} lacks the {features} vectors of {len(lost)} programs: import it again")
        return _Loaded(records, tasks, gathered(stored, ids), features)
    keys = record_keys(ids, [record.task_id for record in records], tasks)

    of_folder = stored_asts(shipped, set(ids))

    def look() -> tuple[dict[str, tuple[AstTable, int]], dict[str, str]]:
        """By record id: what is stored, and what is known to fail."""
        known, failed = stored_asts(chunk_paths(cache), set(keys), cached=True), failures(cache)
        found = {identity: known[key] for identity, key in zip(ids, keys, strict=True) if key in known}
        faults = {identity: failed[key] for identity, key in zip(ids, keys, strict=True) if key in failed}
        return found | of_folder, faults

    stored, failed = look()
    missing = _unique(r for r in records if r.record_id not in stored and r.record_id not in failed)
    if missing:
        wanted = Wanted("asts", cache, sources_of(missing, tasks))
        for_now = derive([wanted], workers, progress, f"compact ASTs of {folder.name}")["asts"]
        stored, failed = look()
        failed |= {identity: for_now[key] for identity, key in zip(ids, keys, strict=True) if key in for_now}
    usable = [record for record in records if record.record_id in stored]
    _report_failed(folder, records, stored, failed)
    joined = gathered(stored, [record.record_id for record in usable])
    codes = codes_for(folder, usable, tasks)
    return _Loaded(usable, tasks, joined.with_codes(codes), features)


def gathered(stored: Mapping[str, tuple[AstTable, int]], keys: Sequence[str]) -> AstTable:
    """The programs ``keys``, in that order, of what ``stored_asts`` found."""
    tables = {id(table): table for table, _ in stored.values()}
    starts, total = {}, 0
    for key, table in tables.items():
        starts[key] = total
        total += len(table)
    rows = [starts[id(stored[key][0])] + stored[key][1] for key in keys]
    return AstTable.concat(list(tables.values())).take(rows)


def features_of(info: Mapping[str, object]) -> str:
    """Kind of leaf vectors of a data set, from its ``dataset.json``; ``DataError`` where nothing here knows it."""
    name = str(info.get("features", "cdmpp"))
    if name not in FEATURES:
        raise DataError(f"a data set with features {name!r}: this cdmpp knows {', '.join(FEATURES)}")
    return name


def ast_cache(folder: Path) -> Path:
    """Cache folder of a data set's ASTs."""
    return data_set_folder("asts", EXTRACTOR_VERSION, folder)


def _unique(records: Iterable[Record]) -> list[Record]:
    return list({record.record_id: record for record in records}.values())


def stored_asts(
    paths: Sequence[Path], wanted: set[str], features: str = "cdmpp", cached: bool = False
) -> dict[str, tuple[AstTable, int]]:
    """Name of a row -> (table, row) over all files of this extractor version that can be read.

    Others are told, or, where they are ``cached``, deleted: what they held is derived again.
    """
    stored: dict[str, tuple[AstTable, int]] = {}
    for path in paths:
        try:
            names, table = read_asts(path, features)
        except DataError as error:
            if cached:
                path.unlink(missing_ok=True)
            else:
                log.warning("%s", error)
            continue
        for row, name in enumerate(names):
            if name in wanted:
                stored.setdefault(name, (table, row))
    return stored


def _report_failed(
    folder: Path, records: Sequence[Record], stored: Mapping[str, object], failed: Mapping[str, str]
) -> None:
    lost = [record for record in records if record.record_id not in stored]
    if not lost:
        return
    first = lost[0]
    where = f"line {first.extra['line']}, " if "line" in first.extra else ""
    example = f"{where}record {first.record_id}: {failed.get(first.record_id, 'no AST was derived')}"
    text = f"{folder}: no compact AST for {len(lost)} of {len(records)} records, first {example}"
    if len(lost) > MAX_FAILED * len(records):
        raise DataError(text)
    log.warning("%s; they are left out", text)
