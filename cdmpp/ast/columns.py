"""Columns of a foreign Parquet file as arrays. DataError: missing, of another type, or with nulls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cdmpp.errors import DataError

if TYPE_CHECKING:  # it takes longer to import than most commands take otherwise
    import pyarrow as pa


def plain_column(arrow: pa.Table, name: str, kind: pa.DataType) -> np.ndarray:
    """Return the values as an (n,) array, texts as objects; ``DataError`` where one is missing."""
    column = _column(arrow, name, kind)
    if column.null_count:
        raise DataError(f"column {name} has {column.null_count} rows without a value")
    return column.to_numpy(zero_copy_only=False)


def list_column(arrow: pa.Table, name: str, kind: pa.DataType) -> tuple[np.ndarray, np.ndarray]:
    """Return all items of all rows, and (n + 1,) int64 offsets at which the rows begin and end."""
    import pyarrow as pa

    column = _column(arrow, name, pa.large_list(kind))
    items = column.flatten()
    if column.null_count or items.null_count:
        raise DataError(f"column {name} has {column.null_count} rows and {items.null_count} items without a value")
    offsets = column.offsets.to_numpy().astype(np.int64)
    return items.to_numpy(zero_copy_only=False), offsets - offsets[0]


def _column(arrow: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if arrow.schema.names.count(name) != 1:
        raise DataError(f"there is no column {name}, or more than one")
    column = arrow.column(name)
    try:
        return column.cast(kind).combine_chunks()
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"column {name} is of type {column.type}, expected {kind}") from error
