"""An evaluation as ``scripts/evaluate.py`` is asked for it: data, cells, tables, pictures."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from cdmpp import devices
from cdmpp.data.dataset import join_datasets
from cdmpp.data.records import read_records
from cdmpp.data.streaming import load_programs
from cdmpp.errors import CdmppError
from cdmpp.evaluation.baselines import NEED_PER_STORE
from cdmpp.evaluation.bundle import load_bundle, save_bundle
from cdmpp.evaluation.cell import CellOptions
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.noise import NoiseFloor, noise_floor
from cdmpp.evaluation.pooling import pool_per_store
from cdmpp.evaluation.report import test_table, write_report
from cdmpp.evaluation.rows import collect
from cdmpp.evaluation.run import evaluate


@dataclass(frozen=True)
class EvaluationSettings:
    device: str
    sources: tuple[str, ...]
    """Further devices in the data set, for splits by device."""
    data_paths: tuple[Path, ...]
    splits: tuple[str, ...]
    seeds: tuple[int, ...]
    models: tuple[str, ...]
    overrides: tuple[str, ...]
    out: Path
    docs: Path | None
    """Folder of RESULTS.md and results.json; None writes only cells."""
    bundle: Path | None
    """Start from this bundle instead of the records."""
    save_bundle: Path | None
    """Write a bundle there and stop."""
    name: str
    """Of the data set in tables."""
    jobs: int
    threads: int
    accelerator: str
    force: bool

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> EvaluationSettings:
        """From the composed ``conf/evaluate.yaml``; ``CdmppError`` names a key that nothing reads."""
        given = dict(values)
        given["device"] = devices.get(given["device"]["name"]).name
        given["data_paths"] = tuple(Path(path).expanduser() for path in given.pop("data")["path"])
        given["sources"] = tuple(devices.get(name).name for name in given["sources"] or ())
        for key in ("splits", "seeds", "models", "overrides"):
            given[key] = tuple(given[key]) if isinstance(given[key], list) else (given[key],)
        for key in ("out", "docs", "bundle", "save_bundle"):
            given[key] = Path(given[key]) if given[key] else None
        given["name"] = given["name"] or given["device"]
        known = [f.name for f in fields(EvaluationSettings)]
        if unknown := sorted(set(given) - set(known)):
            raise CdmppError(f"unknown settings {', '.join(unknown)}; known: {', '.join(known)}")
        return EvaluationSettings(**given)


def run_session(settings: EvaluationSettings) -> None:
    """Everything ``scripts/evaluate.py`` does."""
    data, name = _data(settings)
    if settings.save_bundle:
        save_bundle(settings.save_bundle, data, name)
        size = sum(path.stat().st_size for path in settings.save_bundle.iterdir()) / 1e6
        Console().print(f"{len(data.dataset)} programs in {settings.save_bundle} ({size:.1f} MB)")
        return
    command = " ".join(["python", *sys.argv])
    options = CellOptions(
        settings.out, settings.threads, settings.overrides, settings.accelerator, command, settings.force
    )
    evaluate(data, name, settings.splits, settings.seeds, settings.models, options, settings.jobs)
    publish(settings.out, name, settings.docs, data.noise)


def publish(out: Path, name: str, docs: Path | None, noise: NoiseFloor | None) -> None:
    """Print a table for each split of data set ``name`` from its finished cells; with ``docs`` write its documents."""
    from cdmpp.evaluation.plots import save_evaluation_plot

    cells = collect(out, name)
    for split in dict.fromkeys(cell["split"] for cell in cells):
        _print_split([cell for cell in cells if cell["split"] == split], f"{name}, {split}")
    if docs:
        image = save_evaluation_plot(docs / "images" / f"{name}-mape.png", cells, f"{name}: error on held-out programs")
        write_report(cells, docs, {name: noise} if noise else {}, {name: [str(image.relative_to(docs))]})


def _print_split(cells: list[dict[str, Any]], title: str) -> None:
    means: dict[str, dict[str, float]] = {}
    for model in dict.fromkeys(cell["model"] for cell in cells):
        rows = [cell["metrics"] for cell in cells if cell["model"] == model]
        means[model] = {key: float(np.mean([row[key] for row in rows if key in row])) for key in rows[0]}
    programs, tasks = (round(float(np.mean([cell[key] for cell in cells]))) for key in ("n_programs", "n_tasks"))
    seeds = len({cell["seed"] for cell in cells})
    Console().print(test_table(means, programs, tasks, f"{title}, mean of {seeds} seeds"))


def _data(settings: EvaluationSettings) -> tuple[EvaluationData, str]:
    if settings.bundle:
        return load_bundle(settings.bundle)
    from cdmpp.data.per_store import load_per_store
    from cdmpp.data.sources import data_folders

    folders_of = {name: data_folders(name, settings.data_paths) for name in (*settings.sources, settings.device)}
    dataset = join_datasets(
        [load_programs(folders, name, workers=settings.threads) for name, folders in folders_of.items()]
    )
    folders = list(dict.fromkeys(folder for found in folders_of.values() for folder in found))
    own = folders_of[settings.device]
    noise = noise_floor(record for folder in own for record in read_records(folder, settings.device))
    wanted = set(settings.models) & set(NEED_PER_STORE)
    per_store = load_per_store(dataset, folders, pool_per_store, settings.threads) if wanted else None
    return EvaluationData(dataset, per_store, noise), settings.name
