"""The figures of several models, or devices, side by side on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from rich.table import Table

_COLUMNS = {
    "mape": "MAPE %",
    "median_ape": "median %",
    "p90_ape": "p90 %",
    "within_20": "within 20 %",
    "spearman_within_task": "Spearman in task",
    "top1_regret": "top-1 regret",
}


def metric_table(title: str, rows: Mapping[str, Mapping[str, float]], strong: str) -> Table:
    """A row a model, a column a metric; ``strong`` names the row to stand out."""
    table = Table(title=title, title_justify="left")
    # Told apart on the narrowest terminal: never cut, folded where longer than 24.
    table.add_column("model", overflow="fold", no_wrap=all(len(name) <= 24 for name in rows))
    for heading in _COLUMNS.values():
        table.add_column(heading, justify="right", overflow="fold")
    for name, metrics in rows.items():
        values = [
            _number(metrics.get(key), 3 if key == "spearman_within_task" or "regret" in key else 1) for key in _COLUMNS
        ]
        table.add_row(name, *values, style="bold" if name == strong else "")
    return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None or np.isnan(value) else f"{value:.{digits}f}"
