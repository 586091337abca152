"""The figures of several models, or devices, side by side."""

from __future__ import annotations

from collections.abc import Mapping

from cdmpp.report.report import Column, Table
from cdmpp.units import PERCENT

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
    """Make a row for each model, a column for each metric; ``strong`` names the row to stand out."""
    columns = (Column(key, heading, PERCENT, digits=digits) for key, (heading, digits) in _COLUMNS.items())
    cells = [{"model": name, **{key: metrics.get(key) for key in _COLUMNS}} for name, metrics in rows.items()]
    place = list(rows).index(strong) if strong in rows else None
    return Table(title, (Column("model", "model", kind="text"), *columns), cells, strong=place)
