"""Labels: ids, device and latency of many records, read from five columns instead of whole records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from cdmpp.data.derive import record_keys
from cdmpp.data.merge import each_once
from cdmpp.data.records import read_records, record_parts
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.platform.content import read_parquet
from cdmpp.programs.task import Task

_COLUMNS = ("record_id", "task_id", "device", "latency_s", "spread")


@dataclass(frozen=True)
class Labels:
    """These are the labels of n different programs in the order of their first rows; every array is (n,)."""

    record_ids: np.ndarray
    task_ids: np.ndarray
    devices: np.ndarray
    latency_s: np.ndarray  # float64, the label in seconds
    spread: np.ndarray  # float64, relative noise of the label, see ``Record.spread``

    def __len__(self) -> int:
        return len(self.record_ids)

    def take(self, rows: np.ndarray) -> Labels:
        """Select the programs at ``rows``, positions or a mask."""
        return Labels(*(getattr(self, name)[rows] for name in Labels.__dataclass_fields__))

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self.record_ids, kind="stable")

    def places(self, record_ids: Sequence[str] | np.ndarray) -> np.ndarray:
        """Return (m,) places of these records, -1 for those that are not here."""
        wanted = np.asarray(record_ids, dtype=str)
        if not len(self) or not len(wanted):
            return np.full(len(wanted), -1)
        at = self._order[np.minimum(np.searchsorted(self.record_ids, wanted, sorter=self._order), len(self) - 1)]
        return np.where(self.record_ids[at] == wanted, at, -1)

    def places_of_keys(self, keys: Sequence[str], tasks: Mapping[str, Task]) -> np.ndarray:
        """Return (m,) ``places`` of names of derived files (``derive.record_key``); -1: another workload's."""
        at = self.places([key.rpartition("-")[0] for key in keys])
        at[~np.isin(self.task_ids[at], list(tasks))] = -1
        present = np.flatnonzero(at >= 0)
        expected = record_keys(self.record_ids[at[present]].tolist(), self.task_ids[at[present]].tolist(), tasks)
        at[present] = np.where(np.array(expected) == np.asarray(keys)[present], at[present], -1)
        return at

    @staticmethod
    def of_records(records: Sequence[Record]) -> Labels:
        """Take the labels of records with different ids."""
        kinds = (str, str, str, float, float)
        arrays = [[getattr(record, name) for record in records] for name in _COLUMNS]
        return Labels(*(np.array(array, dtype=kind) for array, kind in zip(arrays, kinds, strict=True)))


def read_labels(folders: Sequence[Path], tasks: Sequence[Mapping[str, Task]], device: str | None) -> Labels:
    """Read the labels in ``folders``, of ``device`` where given; samples of a program that stands twice are united.

    ``tasks`` are those of each folder, by id. ``DataError``: no record of the device, broken rows, an unknown task.
    """
    parts, present = [], set[str]()
    for folder, of_folder in zip(folders, tasks, strict=True):
        for path in record_parts(folder):
            part = _read_columns(path, folder)
            present |= set(np.unique(part.devices).tolist())
            part = part if device is None else part.take(part.devices == device)
            orphans = part.record_ids[~np.isin(part.task_ids, list(of_folder))]
            if len(orphans):
                raise DataError(
                    f"{folder}: {len(orphans)} records name a task that tasks.parquet lacks, first {orphans[0]}"
                )
            parts.append(part)
    joined = Labels(*(np.concatenate([getattr(p, n) for p in parts] or [[]]) for n in Labels.__dataclass_fields__))
    parts.clear()  # of a million records they take as much again
    if not len(joined):
        raise DataError(
            f"{', '.join(map(str, folders))} has no records of device {device or '(any)'}; "
            f"it has records of: {', '.join(sorted(present)) or 'none at all'}"
        )
    ids, first, counts = np.unique(joined.record_ids, return_index=True, return_counts=True)
    labels = joined if len(first) == len(joined) else joined.take(np.sort(first))
    if (counts > 1).any():  # labelled by all their samples
        repeated = set(ids[counts > 1].tolist())
        records = [r for folder in folders for r in read_records(folder, device) if r.record_id in repeated]
        united = Labels.of_records(each_once(records)[0])
        places = labels.places(united.record_ids)
        labels.latency_s[places], labels.spread[places] = united.latency_s, united.spread
    return labels


def _read_columns(path: Path, folder: Path) -> Labels:
    """One part. Where something is wrong with it the slow reader says what."""
    try:
        table = read_parquet(path, _COLUMNS)
        ids, task_ids, names, latency, spread = (table.column(name).to_numpy() for name in _COLUMNS)
        if (latency > 0).all() and np.isfinite(latency).all() and all(map(all, (ids, task_ids, names))):
            spreads = np.nan_to_num(spread.astype(np.float64))
            return Labels(ids.astype(str), task_ids.astype(str), names.astype(str), latency, spreads)
    except (KeyError, ValueError, TypeError, pa.ArrowException):
        pass
    return Labels.of_records(read_records(folder, parts=[path]))
