"""The figures of several models, or devices, side by side on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from rich.table import Table

_COLUMNS = {
    "mape": ("MAPE %", 1),
    "median_ape": ("median %", 1),
    "p90_ape": ("p90 %", 1),
    "within_20": ("within 20 %", 1),
    "spearman_within_task": ("Spearman in task", 3),
    "top1_regret": ("top-1 regret", 3),
}
"""Metric -> heading, digits after the point."""


def metric_table(title: str, rows: Mapping[str, Mapping[str, float]], strong: str) -> Table:
    """A row a model, a column a metric; ``strong`` names the row to stand out."""
    table = Table(title=title, title_justify="left")
    # Told apart on the narrowest terminal: never cut, folded where longer than 24.
    table.add_column("model", overflow="fold", no_wrap=all(len(name) <= 24 for name in rows))
    for heading, _ in _COLUMNS.values():
        table.add_column(heading, justify="right", overflow="fold")
    for name, metrics in rows.items():
        texts = (f"{metrics.get(key, np.nan):.{digits}f}" for key, (_, digits) in _COLUMNS.items())
        table.add_row(name, *(text.replace("nan", "-") for text in texts), style="bold" if name == strong else "")
    return table
