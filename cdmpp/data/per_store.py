"""TVM's own per-store features (164 numbers a stored-to buffer): what baselines read beside our ASTs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.derive import Wanted, chunk_paths, data_set_folder, derive, failures, record_keys, sources_of
from cdmpp.data.files import read_table, write_table
from cdmpp.data.records import read_records, read_tasks
from cdmpp.errors import DataError

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


def write_rows(path: Path, rows: Sequence[tuple[str, np.ndarray]]) -> None:
    """Store (record id, rows) pairs, atomically."""
    values = [matrix.ravel() for _, matrix in rows]
    offsets = np.concatenate([[0], np.cumsum([len(v) for v in values])]).astype(np.int64)
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(values)))
    write_table(path, pa.table({"record_id": pa.array([i for i, _ in rows], pa.string()), "rows": lists}))


def read_rows(path: Path) -> dict[str, np.ndarray]:
    """Record id -> (stores, 164) float32 of one file."""
    table = read_table(path)
    column = table.column("rows").combine_chunks()
    lists = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    flat, ends = lists.flatten().to_numpy(zero_copy_only=False), lists.offsets.to_numpy()
    ids = table.column("record_id").to_pylist()
    return {i: flat[ends[k] : ends[k + 1]].reshape(-1, PER_STORE_WIDTH) for k, i in enumerate(ids)}


def load_per_store(
    dataset: LatencyDataset,
    folders: Sequence[Path],
    pool: Callable[[np.ndarray], np.ndarray],
    workers: int = 2,
    progress: bool = True,
) -> np.ndarray:
    """(n, width of ``pool``) float32 of a data set's programs, index by index.

    ``folders`` are the data set folders it was loaded from; they hold the schedules. Missing rows are derived with
    TVM (about 30 programs a second and process) and cached in chunks. A program that TVM cannot featurise becomes
    a row of zeros and is counted in a warning.
    """
    found: dict[str, np.ndarray] = {}
    failed: dict[str, str] = {}
    wanted = set(dataset.record_ids.tolist())
    for folder in folders:
        cache, tasks = data_set_folder("per_store", _VERSION, folder), read_tasks(folder)
        records = {r.record_id: r for r in read_records(folder, None, "skip") if r.record_id in wanted - found.keys()}
        keys = record_keys(records, [r.task_id for r in records.values()], tasks)
        ids = dict(zip(keys, records, strict=True))
        found.update(_pooled(cache, ids, pool))
        failed.update({ids[key]: reason for key, reason in failures(cache).items() if key in ids})
        if missing := [r for r in records.values() if r.record_id not in found and r.record_id not in failed]:
            title = f"per-store features of {Path(folder).name}"
            wanted_rows = Wanted("per_store", cache, sources_of(missing, tasks))
            for_now = derive([wanted_rows], workers, progress, title)["per_store"]
            found.update(_pooled(cache, ids, pool))
            failed.update({ids[key]: reason for key, reason in {**failures(cache), **for_now}.items() if key in ids})
    lost = [identity for identity in dataset.record_ids if identity not in found]
    if len(lost) == len(dataset):
        reason = next(iter(failed.values()), "none of the folders holds its schedules")
        raise DataError(f"no per-store features for any of {len(dataset)} programs: {reason}")
    if lost:
        log.warning("no per-store features for %d programs, first %s", len(lost), failed.get(lost[0], lost[0]))
    zeros = np.zeros_like(next(iter(found.values())))
    return np.stack([found.get(identity, zeros) for identity in dataset.record_ids])


def _pooled(cache: Path, ids: Mapping[str, str], pool: Callable[[np.ndarray], np.ndarray]) -> Mapping[str, np.ndarray]:
    """Record id -> pooled rows; ``ids`` names the record of each key."""
    pooled = {}
    for path in chunk_paths(cache):
        try:
            rows = read_rows(path)
        except DataError as error:  # damaged: derived again
            log.warning("%s", error)
            continue
        pooled.update({ids[key]: pool(value).astype(np.float32) for key, value in rows.items() if key in ids})
    return pooled
