"""TVM's own per-store features (164 numbers a stored-to buffer): baselines read them next to our ASTs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cdmpp.ast.columns import list_column, plain_column
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.derive import data_set_folder, derive, read_chunks, sources_of
from cdmpp.data.records import read_records, read_tasks
from cdmpp.errors import DataError
from cdmpp.platform.files import read_table, write_table

log = logging.getLogger(__name__)

PER_STORE_WIDTH = 164
_VERSION = "tvm-0.27"


@lru_cache(maxsize=8)
def _extractor(target: Any) -> tuple[Any, Any]:
    import tvm_ffi
    from tvm.s_tir import meta_schedule as ms

    # The Python constructor of TuneContext imports every tensor intrinsic, which takes 10 s and is not needed here.
    make_context = tvm_ffi.get_global_func("s_tir.meta_schedule.TuneContext")
    context = make_context(None, target, None, None, "features", 1, -1, None)
    return ms.feature_extractor.PerStoreFeature(), context


def extract_rows(schedule: Any, target: Any) -> np.ndarray:
    """(stores, 164) float32 of one TVM ``Schedule``, already compressed by log2(1 + x). About 1-15 ms."""
    from tvm.s_tir import meta_schedule as ms

    extractor, context = _extractor(target)
    (rows,) = extractor.extract_from(context, [ms.MeasureCandidate(schedule, [])])
    return rows.numpy().astype(np.float32)


def write_rows(path: Path, rows: Mapping[str, np.ndarray]) -> None:
    """Store record id -> rows, atomically."""
    values = pa.array([matrix.ravel() for matrix in rows.values()], pa.large_list(pa.float32()))
    write_table(path, pa.table({"record_id": pa.array(list(rows), pa.string()), "rows": values}))


def read_rows(path: Path) -> dict[str, np.ndarray]:
    """Record id -> (stores, 164) float32 of one file."""
    table = read_table(path)
    flat, ends = list_column(table, "rows", pa.float32())
    ids = plain_column(table, "record_id", pa.string())
    return {i: flat[ends[k] : ends[k + 1]].reshape(-1, PER_STORE_WIDTH) for k, i in enumerate(ids)}


def load_per_store(
    dataset: LatencyDataset,
    folders: Sequence[Path],
    pool: Callable[[np.ndarray], np.ndarray],
    workers: int = 2,
    progress: bool = True,
) -> np.ndarray:
    """(n, width of ``pool``) float32 of a data set's programs, index by index: ``per_store_rows`` pooled.

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
    """Record id -> ``pool`` of its rows, float32; ``folders`` hold the schedules of the data set's programs.

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
