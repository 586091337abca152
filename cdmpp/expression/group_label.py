"""Group labels: the name of the group of a run, from its categorical columns, and back."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cdmpp.errors import DataError

_BETWEEN = "/"


def label_of(values: Sequence[Any]) -> str:
    """Return the name of the group of these values: ``bert/8`` for bert and 8, 8.0 or the text 8.

    Of several values one that has a slash or a quote is written in quotes, so that ``values_of`` reads it back.
    """
    texts = [f"{one:g}" if isinstance(one, int | float | np.number) else str(one).strip() for one in values]
    if len(texts) == 1:
        return texts[0]
    written = io.StringIO()
    csv.writer(written, delimiter=_BETWEEN, lineterminator="").writerow(texts)
    return written.getvalue()


def values_of(label: str, names: Sequence[str]) -> dict[str, str]:
    """Return the values of the categorical columns ``names`` of a group."""
    if len(names) < 2:
        return dict.fromkeys(names, label)
    (texts,) = csv.reader(io.StringIO(label, newline=""), delimiter=_BETWEEN)
    return dict(zip(names, texts, strict=True))


def labels_of(columns: Mapping[str, Any], groups: Sequence[str], lines: Sequence[int] | None) -> tuple[str, ...]:
    """Return the label of the group of each row.

    Args:
        columns: name -> values, one a row.
        groups: names of the categorical columns.
        lines: the line of a file that each row is from, for messages; None: rows are counted.

    Raises:
        DataError: names the first row that has a value missing.
    """
    labels = list[str]()
    for row, values in enumerate(zip(*(columns[name] for name in groups), strict=True)):
        for name, value in zip(groups, values, strict=True):
            if value is None or value != value or not str(value).strip():
                where = f"row {row + 1}" if lines is None else f"line {lines[row]}"
                raise DataError(f"group {name}, {where} has no value: leave out rows without a value")
        labels.append(label_of(values))
    return tuple(labels)
