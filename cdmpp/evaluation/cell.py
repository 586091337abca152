"""One cell of an evaluation: a model trained on one split with one seed, its test figures in one small JSON file."""

from __future__ import annotations

import datetime
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.ast.layout import EXTRACTOR_VERSION
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.files import read_json, write_atomic, write_json
from cdmpp.data.splits import Split, make_split
from cdmpp.errors import DataError
from cdmpp.evaluation.baselines import BASELINES, make_baseline
from cdmpp.evaluation.coverage import Forecast, conformal_forecast, coverage
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.trees import Trees, TreeSettings
from cdmpp.training.metrics import breakdown, latency_metrics, latency_range_labels


@dataclass(frozen=True)
class Cell:
    split: str
    seed: int
    model: str

    @staticmethod
    def parse(text: str) -> Cell:
        """``split/seed/model`` as ``str(cell)`` writes it."""
        parts = text.split("/")
        if len(parts) != 3 or not parts[1].isdigit():
            raise DataError(f"cell {text!r} is not of the form split/seed/model, e.g. by_task/0/xgb_ours")
        return Cell(parts[0], int(parts[1]), parts[2])

    def __str__(self) -> str:
        return f"{self.split}/{self.seed}/{self.model}"

    def path(self, out: Path, dataset_name: str) -> Path:
        return out / "cells" / dataset_name / self.split / str(self.seed) / f"{self.model}.json"


@dataclass(frozen=True)
class CellOptions:
    """What is the same for all cells of a run."""

    out: Path
    threads: int = 1
    overrides: tuple[str, ...] = ()
    """Hydra overrides for models that are trained, e.g. ``trainer.max_epochs=5``."""
    accelerator: str = "auto"
    command: str = ""
    force: bool = False
    """Compute again even where a finished cell lies."""
    extra: Mapping[str, Any] = field(default_factory=dict)


def run_cell(data: EvaluationData, dataset_name: str, cell: Cell, options: CellOptions) -> dict[str, Any]:
    """Fit, predict the test part, write the cell's files and return the content of the JSON.

    A finished cell of the same data and overrides is read instead. ``a+b`` as model is the geometric mean of the
    finished cells ``a`` and ``b``.
    """
    path = cell.path(options.out, dataset_name)
    fingerprint = _fingerprint(data.dataset, cell, options)
    if path.is_file() and not options.force:
        found = read_json(path)
        if found.get("fingerprint") == fingerprint:
            return found
    split = make_split(data.dataset, cell.split, cell.seed)
    started = time.monotonic()
    forecast = _predict_test(data, dataset_name, split, cell, options)
    tasks, true = np.asarray(data.dataset.task_ids)[split.test], data.dataset.latency_s[split.test]
    result = {
        "dataset": dataset_name,
        "device": "+".join(sorted({str(d) for d in np.asarray(data.dataset.devices)[split.test]})),
        "split": cell.split,
        "seed": cell.seed,
        "model": cell.model,
        **score(data.dataset, split.test, forecast.latency_s),
        "intervals": coverage(true, forecast.intervals, tasks),
        "split_counts": dict(split.counts),
        "seconds": round(time.monotonic() - started, 2),
        "command": options.command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "fingerprint": fingerprint,
    }
    ids = np.asarray(data.dataset.record_ids)[split.test].astype(str)
    arrays = {"record_ids": ids, "true_s": true, "predicted_s": forecast.latency_s}
    for level, bounds in forecast.intervals.items():
        arrays |= {f"{side}_{level}": bound for side, bound in zip(("lower", "upper"), bounds, strict=True)}
    write_atomic(path.with_suffix(".npz"), lambda temporary: _save(temporary, arrays))
    write_json(path, result)
    return result


def score(dataset: LatencyDataset, test: np.ndarray, predicted_s: np.ndarray) -> dict[str, Any]:
    """Figures of the ``test`` programs (m,) with predictions (m,): overall, by op class, latency range and device."""
    true, tasks = dataset.latency_s[test], np.asarray(dataset.task_ids)[test]
    weights = {task: float(max(1, sum(dataset.tasks[task].networks.values()))) for task in np.unique(tasks)}
    return {
        "n_programs": len(test),
        "n_tasks": len(np.unique(tasks)),
        "metrics": _finite(latency_metrics(true, predicted_s, tasks, weights)),
        "by_op_class": _each_finite(breakdown(true, predicted_s, tasks, np.asarray(dataset.op_classes)[test])),
        "by_latency": _each_finite(breakdown(true, predicted_s, tasks, latency_range_labels(true))),
        "by_device": _each_finite(breakdown(true, predicted_s, tasks, np.asarray(dataset.devices)[test])),
    }


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """``record_ids``, ``true_s`` and ``predicted_s`` (m,) of the cell whose JSON is ``path``."""
    try:
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as stored:
            return {name: stored[name] for name in ("record_ids", "true_s", "predicted_s")}
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"no readable predictions beside {path} ({error}); run that cell again") from error


def _predict_test(data: EvaluationData, dataset_name: str, split: Split, cell: Cell, options: CellOptions) -> Forecast:
    """Of the test programs; with intervals for trees and trained models."""
    if "+" in cell.model:
        members = [Cell(cell.split, cell.seed, name).path(options.out, dataset_name) for name in cell.model.split("+")]
        return Forecast(np.exp(np.mean([np.log(_aligned(data.dataset, split, path)) for path in members], axis=0)))
    if cell.model in BASELINES:
        baseline = make_baseline(cell.model, TreeSettings(threads=options.threads))
        baseline.fit(data, split, cell.seed)
        if isinstance(baseline, Trees):
            return conformal_forecast(baseline, data, split)
        return Forecast(baseline.predict(data, split.test))
    from cdmpp.evaluation.learned import train_and_predict

    folder = options.out / "models" / dataset_name / cell.split / str(cell.seed) / cell.model
    return train_and_predict(data.dataset, split, cell, options, folder)


def _aligned(dataset: LatencyDataset, split: Split, path: Path) -> np.ndarray:
    stored = read_predictions(path)
    if list(stored["record_ids"]) != [str(r) for r in np.asarray(dataset.record_ids)[split.test]]:
        raise DataError(f"{path} was made from other data; run that cell again")
    return stored["predicted_s"]


def _fingerprint(dataset: LatencyDataset, cell: Cell, options: CellOptions) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for text in (EXTRACTOR_VERSION, str(cell), *([] if cell.model in BASELINES else options.overrides)):
        digest.update(text.encode() + b"\0")
    digest.update("\0".join(map(str, dataset.record_ids)).encode())
    digest.update(np.ascontiguousarray(dataset.latency_s, np.float64).tobytes())
    if dataset.asts.codes is not None:
        digest.update(np.ascontiguousarray(dataset.asts.codes).tobytes())
    return digest.hexdigest()


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without the figures that are not defined for these programs: JSON has no NaN."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _each_finite(groups: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {label: _finite(metrics) for label, metrics in groups.items()}


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def cells_of(splits: Sequence[str], seeds: Sequence[int], models: Sequence[str]) -> list[Cell]:
    """Every combination; means of other models last, since they read those."""
    cells = [Cell(split, int(seed), model) for split in splits for seed in seeds for model in models]
    return sorted(cells, key=lambda cell: "+" in cell.model)
