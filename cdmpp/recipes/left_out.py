"""LeftOut: how well a device is predicted by a model that was trained without it. What is known stays in the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp import devices
from cdmpp.ast.layout import FEATURES
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.held_out import hold_out
from cdmpp.data.splits import Split
from cdmpp.devices import Device, sheets_of
from cdmpp.errors import DataError
from cdmpp.platform.cache import cached_json, keep_json
from cdmpp.platform.paths import cache_root
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.rows import examine_rows
from cdmpp.recipes.train import train
from cdmpp.training.config import Run, TrainConfig
from cdmpp.training.metrics import call_sites, score
from cdmpp.uncertainty.calibration import LOCAL_INPUTS
from cdmpp.uncertainty.coverage import coverage
from cdmpp.uncertainty.unseen import UnitErrors, Unseen, fit_bounds, fit_unseen
from cdmpp.version import __version__

_TEST_SHARE, _VALIDATION_SHARE = 0.2, 0.15


@dataclass(frozen=True)
class LeftOut:
    """These are figures of ``m`` test programs of a device that was not trained on."""

    metrics: dict[str, float]
    """See ``latency_metrics``."""
    errors: UnitErrors
    """Errors in the order of ``split.test``."""
    without_code: UnitErrors | None = None
    """Errors of answers without the machine code that the model reads; None where it reads none."""


def leave_cores_out(dataset: LatencyDataset, names: Sequence[str], config: TrainConfig, run: Run) -> dict[str, LeftOut]:
    """Train a model without each unit of ``names``, and return figures by unit, on tasks that it saw on no device.

    Trained for half the epochs, a single member, without domain adaptation.
    """
    shorter = replace(config.trainer, epochs=max(1, round(config.trainer.epochs / 2)), members=1)
    config = replace(config, trainer=shorter, loss=replace(config.loss, domain="none"))
    found = {}
    for unit, left in units_of(names).items():
        split = split_without(dataset, left, [name for name in names if name not in left], run.seed)
        found[unit] = leave_out(unit, dataset, split, config, replace(run, out=run.out / f"without-{unit}"))
        print(f"without any record of {unit} ({', '.join(left)}): {found[unit].metrics['mape']:.1f} % MAPE")
    return found


def units_of(names: Sequence[str]) -> dict[str, list[str]]:
    """Group what is left out together, by name: devices with one core; single devices where all have one core."""
    units: dict[str, list[str]] = {}
    for name in names:
        units.setdefault(devices.get(name).core or name, []).append(name)
    return units if len(units) > 1 else {name: [name] for name in names}


def unseen_of(found: Mapping[str, LeftOut]) -> Unseen:
    """Promise for devices that nobody has measured what the errors of left-out units allow."""
    blind = {unit: one.without_code for unit, one in found.items() if one.without_code is not None}
    metrics, errors = ({unit: getattr(one, key) for unit, one in found.items()} for key in ("metrics", "errors"))
    return fit_unseen(metrics, errors, blind if len(blind) == len(found) else None)


def coverage_of(errors: Mapping[str, UnitErrors]) -> dict[str, dict[str, dict[str, float]]]:
    """Return by unit the ``coverage`` of its programs by the bounds that the other units give, by level.

    Empty for fewer than three units: one alone says nothing of others.
    """
    held = {}
    for unit, one in errors.items() if len(errors) > 2 else ():
        bounds = fit_bounds({name: other for name, other in errors.items() if name != unit})
        intervals = bounds.intervals(np.zeros(len(one.log_residuals)), one.inputs)
        held[unit] = coverage(np.exp(one.log_residuals), intervals, one.task_ids)
    return held


def split_without(dataset: LatencyDataset, left: Sequence[str], sources: Sequence[str], seed: int) -> Split:
    """Train and validate on ``sources``, test on the devices ``left``, by tasks that are in no other part."""
    names, tasks = dataset.devices, dataset.task_ids
    out, known = np.isin(names, list(left)), np.isin(names, list(sources))
    tested, rest = hold_out(np.unique(tasks[out]), _TEST_SHARE, seed, "test", "without", "tasks", keep=2)
    learned = np.setdiff1d(tasks[known], tested)
    validated, _ = hold_out(learned, _VALIDATION_SHARE, seed, "validation", "without", "tasks")
    held = np.isin(tasks, validated)
    parts = (known & ~held & ~np.isin(tasks, tested), known & held, out & np.isin(tasks, tested))
    counts = {"left_out": list(left), "sources": list(sources), "tasks": len(rest)}
    train, validation, test = map(np.flatnonzero, parts)
    return Split("without", seed, train, validation, test, counts)


def leave_out(name: str, dataset: LatencyDataset, split: Split, config: TrainConfig, run: Run) -> LeftOut:
    """Train on ``split.train`` and judge on ``split.test``, which has the programs of ``name``.

    What an earlier run found with the same programs, labels, datasheets, configuration and seed is not computed again,
    whatever its ``out``.
    """
    path = cache_root() / "left_out" / f"{_key(name, dataset, split, config, run.seed)}.json"
    if (known := _read(path, dataset.task_ids[split.test])) is not None:
        print(f"trained without {name} before: {path}")
        return known
    predictor = train(dataset, split, config, run).predictor
    errors, blind = _errors(predictor, dataset, split.test), None
    if predictor.reads_code:
        blind = _errors(predictor, replace(dataset, asts=dataset.asts.with_codes(None)), split.test)
    figures = score(dataset, split.test, dataset.latency_s[split.test] / np.exp(errors.log_residuals))["metrics"]
    keep_json(path, {"left_out": name, "metrics": figures, "errors": _lists(errors), "without_code": _lists(blind)})
    return LeftOut(figures, errors, blind)


def _errors(predictor: Predictor, dataset: LatencyDataset, rows: np.ndarray) -> UnitErrors:
    """Errors of ``rows`` on devices that ``predictor`` does not know."""
    seen = examine_rows(predictor, dataset, rows)
    without = np.full(len(rows), predictor.reads_code) & np.isnan(dataset.asts.codes_or_nan()[rows, 0])
    assert predictor.calibration
    residuals = np.log(dataset.latency_s[rows]) - seen.log_prediction
    return UnitErrors(residuals, predictor.calibration.scale_inputs(seen, without), dataset.task_ids[rows])


def _lists(errors: UnitErrors | None) -> dict[str, Any] | None:
    return (
        None if errors is None else {"log_residuals": errors.log_residuals.tolist(), "inputs": errors.inputs.tolist()}
    )


def _read(path: Path, task_ids: np.ndarray) -> LeftOut | None:
    """None where there is no such file, or another one than was written here."""
    try:
        stored = cached_json(path)
        blind = stored["without_code"]
        without_code = None if blind is None else _of_lists(blind, task_ids)
        return LeftOut(dict(stored["metrics"]), _of_lists(stored["errors"], task_ids), without_code)
    except (DataError, LookupError, TypeError, ValueError):
        return None


def _of_lists(stored: Mapping[str, Any], task_ids: np.ndarray) -> UnitErrors:
    """``ValueError``: not of as many programs as there are ``task_ids``."""
    residuals, inputs = (np.array(stored[key], np.float64) for key in ("log_residuals", "inputs"))
    n = len(task_ids)
    return UnitErrors(residuals.reshape(n), inputs.reshape(n, LOCAL_INPUTS), task_ids)


def _key(name: str, dataset: LatencyDataset, split: Split, config: TrainConfig, seed: int) -> str:
    """A digest of everything that the figures follow from."""
    parts = (split.train, split.validation, split.test, split.pool)
    digest, codes = hashlib.blake2b(digest_size=16), dataset.asts.codes
    for rows in parts:
        for names in (dataset.record_ids, dataset.task_ids, dataset.devices):
            digest.update("\n".join([*names[rows].tolist(), ""]).encode())
        for numbers in (dataset.latency_s, codes):
            digest.update(b"" if numbers is None else np.ascontiguousarray(numbers[rows]).tobytes())
    sheets = sheets_of(dataset.devices[np.concatenate(parts)])
    numbers_of = [field.name for field in fields(Device) if field.name not in ("title", "sources", "launch_overheads")]
    said = {
        "left_out": name,
        "config": config.to_dict(),
        "seed": seed,
        "sizes": [len(rows) for rows in parts],
        "sheets": {one: [getattr(sheet, key) for key in numbers_of] for one, sheet in sheets.items()},
        "call_sites": call_sites(dataset, dataset.task_ids[split.test]),
        "features": [dataset.features, FEATURES[dataset.features], codes is not None],
        "cdmpp": __version__,
    }
    digest.update(json.dumps(said, sort_keys=True, default=sorted).encode())  # sets have no order of their own
    return digest.hexdigest()
