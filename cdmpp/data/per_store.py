"""TVM's own per-store features (164 numbers a stored-to buffer): baselines read them next to our ASTs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.derive import data_set_folder, derive, read_chunks, sources_of
from cdmpp.data.derived_table import read_rows
from cdmpp.data.records import read_records, read_tasks
from cdmpp.errors import DataError

log = logging.getLogger(__name__)

_VERSION = "tvm-0.27"


def load_per_store(
    dataset: LatencyDataset,
    folders: Sequence[Path],
    pool: Callable[[np.ndarray], np.ndarray],
    workers: int = 2,
    progress: bool = True,
) -> np.ndarray:
    """Pool ``per_store_rows`` of a data set's programs: (n, width of ``pool``) float32, index by index.

    A program that TVM cannot featurise becomes a row of zeros.
    """
    rows = per_store_rows(dataset, folders, pool, workers, progress)
    zeros = np.zeros_like(next(iter(rows.values())))
    return np.stack([rows.get(identity, zeros) for identity in dataset.record_ids])


def per_store_rows(
    dataset: LatencyDataset,
    folders: Sequence[Path],
    pool: Callable[[np.ndarray], np.ndarray] = np.asarray,
    workers: int = 2,
    progress: bool = True,
) -> dict[str, np.ndarray]:
    """Map record id to ``pool`` of its rows, float32; ``folders`` hold the schedules of the programs.

    Missing rows are derived with TVM (about 30 programs a second and process) and cached in chunks. Programs that TVM
    cannot featurise are left out and counted in a warning. ``DataError``: that is all of them.
    """
    rows: dict[str, np.ndarray] = {}
    reasons: dict[str, str] = {}
    wanted = set(dataset.record_ids.tolist())
    for folder in folders:
        cache, tasks = data_set_folder("per_store", _VERSION, folder), read_tasks(folder)
        records = [r for r in read_records(folder, None, "skip") if r.record_id in wanted - rows.keys()]
        sources = sources_of(records, tasks)
        ids = {source.key: record.record_id for source, record in zip(sources, records, strict=True)}
        for attempt in range(2):
            for chunk in read_chunks(cache, read_rows):
                rows |= {ids[key]: pool(matrix).astype(np.float32) for key, matrix in chunk.items() if key in ids}
            missing = [source for source in sources if ids[source.key] not in rows]
            if missing and attempt == 0:
                title = f"per-store features of {Path(folder).name}"
                failed = derive({"per_store": (cache, missing)}, workers, progress, title)["per_store"]
                reasons |= {ids[key]: reason for key, reason in failed.items() if key in ids}
    lost = [identity for identity in dataset.record_ids if identity not in rows]
    if len(lost) == len(dataset):
        reason = next(iter(reasons.values()), "none of the folders holds its schedules")
        raise DataError(f"no per-store features for any of {len(dataset)} programs: {reason}")
    if lost:
        log.warning("no per-store features for %d programs, first %s", len(lost), reasons.get(lost[0], lost[0]))
    return rows
