"""Finished cells as rows: one figure each, the unit of ``docs/results.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cdmpp.data.files import read_json, write_json


@dataclass(frozen=True)
class ResultRow:
    device: str
    dataset: str
    split: str
    seed: int
    model: str
    metric: str
    """Name as in ``training.metrics.METRICS``."""
    value: float
    """Percent for errors and shares, a ratio for regrets, -1..1 for Spearman."""
    n_programs: int
    n_tasks: int
    command: str
    date: str


def collect(out: Path, dataset_name: str | None = None) -> list[dict[str, Any]]:
    """Contents of all finished cells under ``out``, of one data set or of all, in order of their paths."""
    return [read_json(path) for path in sorted((Path(out) / "cells" / (dataset_name or ".")).rglob("*.json"))]


def result_rows(cells: Iterable[Mapping[str, Any]]) -> list[ResultRow]:
    """One row for each overall metric of each cell."""
    shared = ("device", "dataset", "split", "seed", "model")
    size = ("n_programs", "n_tasks", "command", "date")
    return [
        ResultRow(**{k: cell[k] for k in shared}, metric=metric, value=value, **{k: cell[k] for k in size})
        for cell in cells
        for metric, value in cell["metrics"].items()
    ]


def update_results(path: Path, rows: Sequence[ResultRow]) -> None:
    """Write ``rows`` into the JSON list at ``path``: they replace all rows there of their data sets.

    A row that stayed although this evaluation lacks its cell would be a figure of older data beside new ones.
    """
    new = {row.dataset for row in rows}
    old = read_json(path) if path.is_file() else []
    merged = [row for row in old if row["dataset"] not in new] + [asdict(row) for row in rows]
    merged.sort(key=lambda row: (*map(str, _cell_key(row)), row["metric"]))
    write_json(path, merged)


def _cell_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("device", "dataset", "split", "seed", "model"))
