"""Code vectors of a data set: stored beside its ASTs, derived by compiling its programs where they are missing."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from cdmpp.cache import cache_root
from cdmpp.code.code_vector import CODE_VERSION, CODE_WIDTH
from cdmpp.data.derive import chunk_paths, derive, failures
from cdmpp.data.files import read_table, write_table
from cdmpp.data.records import read_info, read_records, read_tasks
from cdmpp.errors import DataError

log = logging.getLogger(__name__)

CODES_FOLDER = "codes"


def write_codes(path: Path, codes: Mapping[str, np.ndarray]) -> None:
    """Write record id -> (CODE_WIDTH,) float32, atomically."""
    ids = sorted(codes)
    flat = np.stack([codes[i] for i in ids]).astype(np.float32).ravel() if ids else np.zeros(0, np.float32)
    table = pa.table(
        {"record_id": pa.array(ids, pa.string()), "code": pa.FixedSizeListArray.from_arrays(pa.array(flat), CODE_WIDTH)}
    )
    write_table(path, table.replace_schema_metadata({"code_version": CODE_VERSION}))


def read_codes(path: Path) -> dict[str, np.ndarray]:
    """Record id -> code vector. ``DataError``: unreadable, or vectors of another version."""
    table = read_table(path)
    found = (table.schema.metadata or {}).get(b"code_version", b"unknown").decode()
    if found != CODE_VERSION:
        raise DataError(
            f"{path} holds code vectors of version {found}, this cdmpp reads {CODE_VERSION}: delete the file, and "
            "derive them again with `cdmpp data codes` where they are wanted"
        )
    column = table.column("code").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    rows = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, CODE_WIDTH).astype(np.float32)
    return dict(zip(table.column("record_id").to_pylist(), rows, strict=True))


def code_paths(folder: Path) -> list[Path]:
    """Files with code vectors of data set ``folder``; where two hold one program, the later counts."""
    return [*chunk_paths(_cache(folder)), *sorted((folder / CODES_FOLDER).glob("part-*.parquet"))]


def codes_for(folder: Path, record_ids: Sequence[str]) -> np.ndarray | None:
    """(n, CODE_WIDTH) of the records of data set ``folder`` that have one here, NaN rows else; None for none at all."""
    known: dict[str, np.ndarray] = {}
    for path in code_paths(folder):
        try:
            known.update(read_codes(path))
        except DataError as error:
            log.info("%s", error)
    missing = np.full(CODE_WIDTH, np.nan, np.float32)
    rows = [known.get(identity) for identity in record_ids]
    if all(row is None for row in rows):
        return None
    return np.stack([missing if row is None else row for row in rows])


def derive_codes(folder: Path, workers: int = 2, progress: bool = True, ship: bool = False) -> int:
    """Compile every CPU program of data set ``folder`` that has no code vector here; returns how many have one then.

    With ``ship`` they are written into the data set's ``codes/``, else they stay in the cache. A killed run continues.
    """
    records, tasks = read_records(folder), read_tasks(folder)
    records = [record for record in records if '"llvm"' in record.target]
    have = codes_for(folder, [record.record_id for record in records])
    known = np.zeros(len(records), bool) if have is None else ~np.isnan(have[:, 0])
    failed = failures(_cache(folder))
    todo = [r for r, done in zip(records, known, strict=True) if not done and r.record_id not in failed]
    derive("codes", _cache(folder), todo, tasks, workers, progress, f"code vectors of {folder.name}")
    have = codes_for(folder, [record.record_id for record in records])
    if have is None:
        return 0
    found = {r.record_id: row for r, row in zip(records, have, strict=True) if not np.isnan(row[0])}
    if ship:
        write_codes(folder / CODES_FOLDER / "part-00000.parquet", found)
    return len(found)


def _cache(folder: Path) -> Path:
    return cache_root() / "codes" / f"v{CODE_VERSION}" / str(read_info(folder).get("name") or folder.name)
