"""Rows: the first table of a report as CSV or Parquet, or its totals."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdmpp.platform.files import write_atomic, write_text
from cdmpp.report.report import Report

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Letters at which a spreadsheet takes a text for a formula."""


def write_csv(reports: Sequence[Report], path: Path) -> None:
    """Write the rows of the last report that has some, all keys of them, whole or not at all; without rows the totals.

    Texts that a spreadsheet would run as formulas get an apostrophe before them. ``DataError`` where the file cannot be
    written.
    """
    keys, rows = _rows(reports)
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(keys)
    writer.writerows([_cell(row.get(key)) for key in keys] for row in rows)
    write_text(path, stream.getvalue())


def write_parquet(reports: Sequence[Report], path: Path) -> None:
    """Write the rows that ``write_csv`` writes, numbers as numbers; a column of unlike values is of texts.

    ``DataError`` where the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    keys, rows = _rows(reports)
    table = pa.table({key: _column([row.get(key) for row in rows]) for key in keys})
    write_atomic(path, lambda temporary: pq.write_table(table, temporary))


def _rows(reports: Sequence[Report]) -> tuple[list[str], Sequence[Mapping[str, Any]]]:
    """Return all keys, and the rows."""
    tables = [report.tables[0] for report in reports if report.tables]
    if not tables:
        return ["name", "value", "unit"], [vars(total) for total in reports[-1].totals]
    rows = tables[-1].rows
    return list(dict.fromkeys(key for row in rows for key in row)) or [one.key for one in tables[-1].columns], rows


def _column(values: Sequence[Any]) -> Any:
    import pyarrow as pa

    texts = [None if value is None else "; ".join(map(str, value)) if isinstance(value, list | tuple) else value
             for value in values]  # fmt: skip
    if len({type(value) for value in texts} - {type(None), int, float}) > 1 or any(isinstance(v, dict) for v in texts):
        texts = [None if value is None else str(value) for value in texts]
    try:
        return pa.array(texts)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if value is None else str(value) for value in texts])


def _cell(value: Any) -> Any:
    text = "; ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(_FORMULA) else text
