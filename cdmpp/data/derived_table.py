"""Tables of what is derived from programs, by record id: vectors of machine code, and TVM's per-store features."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from cdmpp.ast.columns import list_column, plain_column
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.code_features import CODE_VERSION, CODE_WIDTH
from cdmpp.platform.files import read_table, write_table

PER_STORE_WIDTH = 164


def write_codes(path: Path, codes: Mapping[str, np.ndarray], readers: Mapping[str, str] | None = None) -> None:
    """Write record id -> (CODE_WIDTH,) float32, atomically, in the order given: that of records packs best.

    ``readers`` says which ``CODE_READER`` each vector is of, where a file holds those of several.
    """
    columns = [pa.array(codes, pa.string()), pa.array(codes.values(), pa.list_(pa.float32(), CODE_WIDTH))]
    names = ["record_id", "code"]
    if readers is not None:
        columns.append(pa.array([readers[name] for name in codes], pa.string()).dictionary_encode())
        names.append("reader")
    write_table(path, pa.table(columns, names=names, metadata={"code_version": CODE_VERSION}))


def read_readers(path: Path) -> dict[str, str]:
    """Read record id -> ``CODE_READER`` of its vector; empty where the file does not say."""
    table = read_table(path)
    if "reader" not in table.column_names:
        return {}
    return dict(zip(table["record_id"].to_pylist(), table["reader"].to_pylist(), strict=True))


def read_codes(path: Path) -> dict[str, np.ndarray]:
    """Read record id -> code vector. ``DataError``: unreadable, or vectors of another version."""
    table = read_table(path)
    version = (table.schema.metadata or {}).get(b"code_version", b"unknown").decode("utf-8", "replace")
    if version != CODE_VERSION:
        raise DataError(
            f"{path} holds code vectors of version {version}, this cdmpp reads {CODE_VERSION}: delete the file, and "
            "derive them again with `cdmpp data codes` where they are wanted"
        )
    try:
        rows, ends = list_column(table, "code", pa.float32())
        ids = plain_column(table, "record_id", pa.string())
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if (np.diff(ends) != CODE_WIDTH).any():
        raise DataError(f"{path}: code vectors of another width than {CODE_WIDTH}")
    return dict(zip(ids.tolist(), rows.reshape(-1, CODE_WIDTH), strict=True))


def write_rows(path: Path, rows: Mapping[str, np.ndarray]) -> None:
    """Store record id -> rows, atomically."""
    values = pa.array([matrix.ravel() for matrix in rows.values()], pa.large_list(pa.float32()))
    write_table(path, pa.table({"record_id": pa.array(list(rows), pa.string()), "rows": values}))


def read_rows(path: Path) -> dict[str, np.ndarray]:
    """Read record id -> (stores, 164) float32 of one file."""
    table = read_table(path)
    flat, ends = list_column(table, "rows", pa.float32())
    ids = plain_column(table, "record_id", pa.string())
    return {i: flat[ends[k] : ends[k + 1]].reshape(-1, PER_STORE_WIDTH) for k, i in enumerate(ids)}
