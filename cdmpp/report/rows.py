"""Rows: the first table of a report as CSV, or its totals."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdmpp.platform.files import write_text
from cdmpp.report.report import Report

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Letters at which a spreadsheet takes a text for a formula."""


def write_csv(reports: Sequence[Report], path: Path) -> None:
    """Write the rows of the last report that has some, all keys of them, whole or not at all; without rows the totals.

    Texts that a spreadsheet would run as formulas get an apostrophe before them. ``DataError`` where the file cannot be
    written.
    """
    tables = [report.tables[0] for report in reports if report.tables]
    if tables:
        rows = tables[-1].rows
        keys = list(dict.fromkeys(key for row in rows for key in row)) or [one.key for one in tables[-1].columns]
    else:
        rows, keys = [vars(total) for total in reports[-1].totals], ["name", "value", "unit"]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(keys)
    writer.writerows([_cell(row.get(key)) for key in keys] for row in rows)
    write_text(path, stream.getvalue())


def _cell(value: Any) -> Any:
    text = "; ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(_FORMULA) else text
