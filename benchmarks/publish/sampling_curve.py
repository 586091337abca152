"""Error on a new device against the number of its tasks measured, for each way of choosing them.

``python -m benchmarks.publish.sampling_curve device=xeon-icelake-2c curve=[3,10,30] docs=docs``; further words are
settings of ``conf/finetune.yaml``.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.publish.command_line import run
from benchmarks.publish.curve_report import ZERO_SHOT, curve_table, publish_curve, summary
from benchmarks.publish.plots import save_budget_plot
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.errors import CdmppError, DataError
from cdmpp.platform.files import read_json, write_json
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes.adapted import adapt
from cdmpp.recipes.candidates import candidates
from cdmpp.recipes.compose import compose
from cdmpp.recipes.fine_tune import errors_by_device
from cdmpp.recipes.finetune_settings import FinetuneSettings
from cdmpp.recipes.finetuning import base_model, device_split, load_target_and_sources
from cdmpp.training.metrics import score
from cdmpp.training.processes import one_writer
from cdmpp.training.sampling import check_sampler, choose_tasks


@dataclass(frozen=True)
class Curve:
    """What is compared."""

    budgets: tuple[int, ...]
    """Tasks."""
    seeds: tuple[int, ...]
    samplers: tuple[str, ...]

    def __post_init__(self) -> None:
        if min(self.budgets, default=0) < 1:
            raise CdmppError("curve counts tasks: at least 1 each")
        if not (self.seeds and self.samplers):
            raise CdmppError("a curve needs at least one of seeds and of samplers")
        for sampler in self.samplers:
            check_sampler(sampler)


def sampling_curve(settings: FinetuneSettings, curve: Curve, docs: Path | None = None) -> list[dict[str, Any]]:
    """Fine-tune with every budget, sampler and seed; print, plot and save ``curve.json``. Returns its cells.

    Each seed has its own held-out test tasks, which no sampler can choose (with ``test_networks`` all have the same),
    and its own model of the sources. Finished cells in ``settings.run.out`` are not computed again. With ``docs`` the
    curve becomes a page there.

    Raises:
        NoRecordsError: the device has no records. DataError: a budget larger than the tasks to choose from.
    """
    dataset, sources = load_target_and_sources(settings)
    task_ids, out, device = np.asarray(dataset.task_ids), settings.run.out, settings.device.name
    splits = {seed: device_split(settings, dataset, sources, seed) for seed in curve.seeds}
    available = min(len(np.unique(task_ids[split.pool])) for split in splits.values())
    if max(curve.budgets) > available:
        raise DataError(f"curve: a budget of {max(curve.budgets)} tasks, but only {available} can be chosen from")
    console, cells = Console(), []
    for seed, split in splits.items():
        own = replace(settings, run=replace(settings.run, seed=seed))
        cells += _cells_of_seed(own, curve, dataset, split, console)
    write_json(out / "curve.json", {"device": device, "sources": sources, "cells": cells})
    title = f"{device} from {'+'.join(sources)}"
    title += f", {', '.join(settings.test_networks)} held out" if settings.test_networks else ""
    console.print(curve_table(cells, f"{title}: test MAPE % by tasks measured"))
    picture = save_budget_plot(out / "curve.png", summary(cells), title)
    console.print(f"plot: {picture}, figures: {out / 'curve.json'}", soft_wrap=True)
    if docs:
        command = shlex.join(["python", "-m", "benchmarks.publish.sampling_curve", *sys.argv[1:]])
        publish_curve(cells, device, sources, picture, docs, command)
    return cells


def _cells_of_seed(
    settings: FinetuneSettings, curve: Curve, dataset: LatencyDataset, split: Split, console: Console
) -> list[dict[str, Any]]:
    seed = settings.run.seed
    base = base_model(settings, dataset, split, f"base-{seed}")
    choices = candidates(base, dataset, split.pool, settings.device, seed)
    wanted = [(ZERO_SHOT, 0), *((sampler, budget) for budget in curve.budgets for sampler in curve.samplers)]
    networks, cells = split.counts.get("test_networks", []), []
    for sampler, budget in wanted:
        tasks = list(choose_tasks(sampler, choices, budget, seed)) if budget else []
        path = settings.run.out / "cells" / str(seed) / f"{sampler}-{budget}.json"
        cell = read_json(path) if path.is_file() else None
        if cell is None or cell["tasks"] != tasks or cell.get("test_networks", []) != networks:
            figures = _tuned(settings, dataset, split, base, tasks) if tasks else _scored(base, dataset, split)
            what = {"sampler": sampler, "budget": budget, "seed": seed, "tasks": tasks, "test_networks": networks}
            write_json(path, {**what, **figures})
            cell = read_json(path)
        cells.append(cell)
        console.print(f"seed {seed}, {budget} tasks, {sampler}: {cell['metrics']['mape']:.1f} % MAPE")
    return cells


def _tuned(
    settings: FinetuneSettings, dataset: LatencyDataset, split: Split, base: Predictor, tasks: Sequence[str]
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="cdmpp-curve-") as scratch:
        scratch_run = replace(settings.run, out=Path(scratch) / "run", progress=False)
        adapted = adapt(base, dataset, split, tasks, settings.tuning, scratch_run, settings.training.loss)
        figures = {"way": adapted.way, "held_out_mape": dict(adapted.errors)}
        return {**_scored(adapted.predictor, dataset, split), **figures}


def _scored(predictor: Predictor, dataset: LatencyDataset, split: Split) -> dict[str, Any]:
    sources = errors_by_device(predictor, dataset, split.validation)
    figures = score(dataset, split.test, predict_rows(predictor, dataset, split.test))
    return {**figures, "source_validation_mape": {name: metrics["mape"] for name, metrics in sources.items()}}


def main(curve: list[int], seeds: list[int], samplers: list[str], docs: str | None, overrides: Sequence[str]) -> None:
    """One curve, by the settings that ``overrides`` make of ``conf/finetune.yaml``."""
    settings = FinetuneSettings.from_dict(compose("finetune", overrides))
    with one_writer(settings.run.out):
        sampling_curve(settings, Curve(tuple(curve), tuple(seeds), tuple(samplers)), Path(docs) if docs else None)


_DEFAULTS = {
    "curve": [3, 10, 30],
    "seeds": [0, 1, 2, 3, 4],
    "samplers": ["random", "kmeans", "kmeans_most", "diverse"],
    "docs": None,
}

if __name__ == "__main__":
    own = [word for word in sys.argv[1:] if word.partition("=")[0] in _DEFAULTS]
    run(partial(main, overrides=[word for word in sys.argv[1:] if word not in own]), own, **_DEFAULTS)
