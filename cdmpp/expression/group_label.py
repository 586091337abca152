"""Group labels: the name of the group of a run, from its categorical columns, and back."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

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
