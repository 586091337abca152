"""An evaluation as ``cdmpp model evaluate`` is asked for it: data, cells, tables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp import devices
from cdmpp.ast.layout import FEATURES
from cdmpp.ast.pooling import pool_per_store
from cdmpp.data.dataset import join_datasets
from cdmpp.data.loading import load_programs
from cdmpp.data.per_store import load_per_store
from cdmpp.data.records import read_records
from cdmpp.data.sources import data_folders
from cdmpp.data.splits import check_split, split_definition
from cdmpp.evaluation.baselines import BASELINES, NEED_PER_STORE
from cdmpp.evaluation.cell import CellOptions
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.learned import train_config
from cdmpp.evaluation.noise import noise_floor
from cdmpp.evaluation.results import collect, update_results
from cdmpp.evaluation.run import evaluate
from cdmpp.execute.executor import executor_address
from cdmpp.model.config import check_keys
from cdmpp.platform.limits import PROCESSES, SEED, check_choice, fitting_values
from cdmpp.recipes.settings import data_paths
from cdmpp.report.metric_table import metric_table
from cdmpp.report.text import print_table

_KEYS = ("splits", "seeds", "models", "overrides", "device", "data", "sources", "variants", "stored", "out", "name",
         "executor", "jobs", "threads", "accelerator", "force", "features")  # fmt: skip
_LISTS = ("splits", "seeds", "models", "overrides")
_HINTS: dict[str, Any] = {
    **dict.fromkeys(("splits", "models", "overrides"), list[str]),
    "seeds": list[int],
    "sources": list[str] | None,
    **dict.fromkeys(("device", "data"), dict),
    **dict.fromkeys(("variants", "stored"), dict | None),
    **dict.fromkeys(("out", "executor", "accelerator", "features"), str),
    "name": str | None,
    **dict.fromkeys(("jobs", "threads"), int),
    "force": bool,
}
_LIMITS = {"seeds": SEED, **dict.fromkeys(("jobs", "threads"), PROCESSES)}


@dataclass(frozen=True)
class EvaluationSettings:
    """This is ``conf/evaluate.yaml`` in plain Python; the comments there say more."""

    devices: tuple[str, ...]
    data_paths: tuple[Path, ...]
    splits: tuple[str, ...]
    seeds: tuple[int, ...]
    models: tuple[str, ...]
    options: CellOptions
    jobs: int
    name: str
    features: str = "cdmpp"

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> EvaluationSettings:
        """Read the composed ``conf/evaluate.yaml``; ``CdmppError`` names a key that nothing reads."""
        check_keys(values, _KEYS)
        # One name needs no brackets.
        values = {**values, **{key: [values[key]] for key in _LISTS if not isinstance(values[key], list)}}
        fitting_values(values, _HINTS, _LIMITS)
        executor_address(values["executor"])
        check_choice("features", values["features"], tuple(FEATURES))
        check_choice("accelerator", values["accelerator"], ("auto", "cpu", "gpu"))
        for split in values["splits"]:
            check_split(split_definition(split))
        names = tuple(devices.get(name).name for name in (*(values["sources"] or ()), devices.named(values["device"])))
        splits, seeds, models, overrides = (tuple(values[key]) for key in _LISTS)
        how = {key: values[key] for key in ("threads", "accelerator", "force")}
        command = shlex.join(["cdmpp", "model", "evaluate", *sys.argv[1:]])
        named: dict[str, Any] = {key: values[key] or {} for key in ("variants", "stored")}
        options = CellOptions(Path(values["out"]), overrides=overrides, command=command, **named, **how)
        paths = data_paths(values["data"])
        for model in models:
            if model not in BASELINES and model not in options.stored:
                train_config(model, overrides, options.variants)
        name = values["name"] or names[-1]
        return EvaluationSettings(
            names, paths, splits, seeds, models, options, values["jobs"], name, values["features"]
        )


def run_session(settings: EvaluationSettings) -> None:
    """Run all cells; print a table for each split; keep the figures in ``results.csv`` and ``runs.csv`` of ``out``."""
    data, name, options = load_evaluation_data(settings), settings.name, settings.options
    results = evaluate(data, name, settings.splits, settings.seeds, settings.models, options, settings.jobs)
    update_results(options.out, results)
    cells = collect(options.out, name)
    for split in dict.fromkeys(cell["split"] for cell in cells):
        _print_split([cell for cell in cells if cell["split"] == split], f"{name}, {split}")


def load_evaluation_data(settings: EvaluationSettings) -> EvaluationData:
    """Load all programs of the devices, their noise, and features of TVM where a baseline reads them."""
    threads, parts, noise = settings.options.threads, [], {}
    folders_of = {
        name: data_folders(name, settings.data_paths, features=settings.features) for name in settings.devices
    }
    for name, folders in folders_of.items():
        parts.append(load_programs(folders, name, workers=threads))
        if floor := noise_floor(record for folder in folders for record in read_records(folder, name)):
            noise[name] = floor
    dataset, per_store = join_datasets(parts), None
    if NEED_PER_STORE in settings.models:
        every = list(dict.fromkeys(chain(*folders_of.values())))
        per_store = load_per_store(dataset, every, pool_per_store, threads)
    return EvaluationData(dataset, per_store, noise)


def _print_split(cells: list[dict[str, Any]], title: str) -> None:
    means: dict[str, dict[str, float]] = {}
    for model in dict.fromkeys(cell["model"] for cell in cells):
        rows = [cell["metrics"] for cell in cells if cell["model"] == model]
        means[model] = {key: float(np.mean([row[key] for row in rows if key in row])) for key in rows[0]}
    best = min(means, key=lambda model: means[model]["mape"])
    programs, tasks = (round(np.mean([cell[key] for cell in cells])) for key in ("n_programs", "n_tasks"))
    seeds = len({cell["seed"] for cell in cells})
    heading = f"{title}: mean of {seeds} seed{'s' * (seeds > 1)}, {programs:,} programs of {tasks:,} tasks"
    print_table(metric_table(heading, means, best))
