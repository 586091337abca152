"""Shared ASTs: a compact AST does not depend on the device, so a data set may name another one that holds its ASTs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from cdmpp.ast.columns import plain_column
from cdmpp.ast.table import AstTable, read_asts
from cdmpp.errors import DataError
from cdmpp.platform.files import read_table, write_table

SHARED_FILE = "shared.parquet"
"""Lies in ``asts/`` next to the parts that hold what no other data set has."""
_SOURCE = b"cdmpp.asts_of"


def write_shared(folder: Path, source: str, same_as: Mapping[str, str]) -> None:
    """Write which records of ``folder`` have the AST of which record of the data set ``source`` next to it."""
    columns = [pa.array(same_as, pa.string()), pa.array(same_as.values(), pa.string())]
    table = pa.table(columns, names=["record_id", "same_as"], metadata={_SOURCE: source}).sort_by("record_id")
    write_table(folder / "asts" / SHARED_FILE, table)


def shared_asts(folder: Path) -> Iterator[tuple[list[str], AstTable]]:
    """Yield record ids of ``folder`` with their ASTs, which another data set next to it holds, a part at a time.

    There is nothing where ``folder`` shares none. ``DataError``: a damaged file, or the other data set is not there.
    """
    path = folder / "asts" / SHARED_FILE
    if not path.exists():
        return
    table = read_table(path)
    source = folder.parent / (table.schema.metadata or {}).get(_SOURCE, b"").decode("utf-8", "replace")
    if source.parent != folder.parent or source.name == ".." or not (source / "asts").is_dir():
        raise DataError(f"{path} names the data set {source.name!r} for its ASTs, which is not in {folder.parent}")
    try:
        own, same_as = (plain_column(table, name, pa.string()) for name in ("record_id", "same_as"))
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    order = np.argsort(same_as.astype(str), kind="stable")
    own, same_as = own[order].astype(str), same_as[order].astype(str)
    for part in sorted((source / "asts").glob("part-*.parquet")):
        names, asts = read_asts(part)
        first, last = (np.searchsorted(same_as, names, side) for side in ("left", "right"))
        rows = np.repeat(np.arange(len(names)), last - first)
        places = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)] or [np.zeros(0, int)])
        yield own[places.astype(int)].tolist(), asts.take(rows)
