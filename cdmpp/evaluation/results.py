"""Figures of evaluations as two CSV tables: ``results.csv``, a row a tested model, and ``runs.csv``, what made them."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.platform.files import read_json, write_text

RESULTS, RUNS = "results.csv", "runs.csv"
_KEYS = ("device", "dataset", "split", "seed", "model")
"""Columns of ``results.csv`` that say what was tested; after them and the run comes a column for each metric."""


@dataclass(frozen=True)
class Run:
    """A run is one command on one day, as far as its test parts are of one size."""

    command: str
    date: str
    commit: str
    """Commit of our sources; empty where they were no Git checkout."""
    n_programs: int
    n_tasks: int

    @property
    def name(self) -> str:
        """The name is the key in ``runs.csv``: equal for equal runs, whoever writes the table."""
        return hashlib.blake2b("\0".join(map(str, astuple(self))).encode(), digest_size=4).hexdigest()


@dataclass(frozen=True)
class Result:
    """A result is one figure of a model on the test part of a split."""

    device: str
    dataset: str
    split: str
    seed: int
    model: str
    metric: str
    """Name as in ``training.metrics.latency_metrics``."""
    value: float
    """Percent for errors and shares, a ratio for regrets, -1..1 for Spearman."""
    run: Run


def collect(out: Path, dataset_name: str | None = None) -> list[dict[str, Any]]:
    """Read all finished cells under ``out``, of one data set or of all, in order of their paths."""
    return [read_json(path) for path in sorted((Path(out) / "cells" / (dataset_name or ".")).rglob("*.json"))]


def results_of(cells: Iterable[Mapping[str, Any]]) -> list[Result]:
    """Make one result of each overall metric of each cell."""
    of_run = [field.name for field in fields(Run)]
    results = []
    for cell in cells:
        named, run = {key: cell[key] for key in _KEYS}, Run(**{key: cell[key] for key in of_run})
        results += [Result(**named, metric=metric, value=value, run=run) for metric, value in cell["metrics"].items()]
    return results


def read_results(folder: Path) -> list[Result]:
    """Read ``folder/results.csv`` with its runs; none where there is no such file. ``DataError``: damaged."""
    if not (folder / RESULTS).is_file():
        return []
    try:
        runs = {}
        for row in _rows(folder / RUNS):
            name, counts = row.pop("run"), {key: int(row[key]) for key in ("n_programs", "n_tasks")}
            runs[name] = Run(**{**row, **counts})
        results = []
        for row in _rows(folder / RESULTS):
            told, run = {key: row.pop(key) for key in _KEYS}, runs[row.pop("run")]
            known = {**told, "seed": int(told["seed"]), "run": run}
            results += [Result(**known, metric=name, value=float(text)) for name, text in row.items() if text != ""]
        return results
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder / RESULTS} and {RUNS} are damaged or do not belong together: {error!r}") from error


def update_results(folder: Path, results: Sequence[Result]) -> list[Result]:
    """Write ``results`` into the tables of ``folder``, for all figures of their data sets; return what stands there.

    Figures are kept to seven significant digits: the rest is noise of the machine that computed them.
    """
    new = {result.dataset for result in results}
    merged = [result for result in read_results(folder) if result.dataset not in new] + list(results)
    merged.sort(key=lambda r: (r.device, r.dataset, r.split, r.seed, r.model, r.metric))
    runs = {result.run.name: result.run for result in merged}
    ordered = sorted(runs.items(), key=lambda item: (item[1].date, item[0]))
    _write(folder / RUNS, [{"run": name, **vars(run)} for name, run in ordered])
    metrics, rows = sorted({result.metric for result in merged}), dict[tuple[object, ...], dict[str, Any]]()
    for result in merged:
        known = {**{key: getattr(result, key) for key in _KEYS}, "run": result.run.name}
        row = rows.setdefault(tuple(known.values()), {**known, **dict.fromkeys(metrics, "")})
        row[result.metric] = f"{result.value:.7g}"
    _write(folder / RESULTS, list(rows.values()))
    return read_results(folder)


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
