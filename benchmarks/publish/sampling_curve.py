"""Error on a new device against the number of its tasks measured, for each way of choosing them.

``python -m benchmarks.publish.sampling_curve device=xeon-icelake-2c curve=[3,10,30] docs=docs``; the other settings
are those of ``conf/finetune.yaml``.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.publish.curve_report import ZERO_SHOT, curve_table, publish_curve, summary
from benchmarks.publish.plots import save_budget_plot
from cdmpp.cli.hydra_entry import entry
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.files import read_json, write_json
from cdmpp.data.splits import Split
from cdmpp.errors import DataError
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes.candidates import candidates
from cdmpp.recipes.fine_tune import errors_by_device, fine_tune
from cdmpp.recipes.finetune_settings import FinetuneSettings
from cdmpp.recipes.finetuning import base_model, device_split, load_target_and_sources
from cdmpp.training.metrics import score
from cdmpp.training.processes import one_writer
from cdmpp.training.sampling import choose_tasks


def sampling_curve(settings: FinetuneSettings) -> list[dict[str, Any]]:
    """Fine-tune with every budget, sampler and seed; print, plot and save ``curve.json``. Returns its cells.

    Each seed has its own held-out test tasks, which no sampler can choose, and its own model of the sources. Finished
    cells in ``settings.out`` are not computed again.

    Raises:
        NoRecordsError: the device has no records. DataError: a budget larger than the tasks to choose from.
    """
    dataset, sources = load_target_and_sources(settings)
    names = np.asarray(dataset.task_ids)
    splits = {seed: device_split(settings, dataset, sources, seed) for seed in settings.seeds}
    available = min(len(np.unique(names[split.pool])) for split in splits.values())
    if max(settings.curve) > available:
        raise DataError(f"curve: a budget of {max(settings.curve)} tasks, but only {available} can be chosen from")
    console, cells = Console(), []
    for seed, split in splits.items():
        cells += _cells_of_seed(settings, dataset, split, seed, console)
    write_json(settings.out / "curve.json", {"device": settings.device.name, "sources": sources, "cells": cells})
    console.print(curve_table(cells, f"{settings.device.name} from {'+'.join(sources)}: test MAPE % by tasks measured"))
    picture = save_budget_plot(
        settings.out / "curve.png", summary(cells), f"{settings.device.name} from {'+'.join(sources)}"
    )
    console.print(f"plot: {picture}, figures: {settings.out / 'curve.json'}", soft_wrap=True)
    if settings.docs:
        publish_curve(cells, settings.device.name, sources, picture, settings.docs, _command())
    return cells


def _cells_of_seed(
    settings: FinetuneSettings, dataset: LatencyDataset, split: Split, seed: int, console: Console
) -> list[dict[str, Any]]:
    base = base_model(settings, dataset, split, f"base-{seed}")
    choices = candidates(base, dataset, split.pool, settings.device, settings.sample_by, seed)
    wanted = [(ZERO_SHOT, 0), *((sampler, budget) for budget in settings.curve for sampler in settings.samplers)]
    cells = []
    for sampler, budget in wanted:
        tasks = list(choose_tasks(sampler, choices, budget, seed)) if budget else []
        path = settings.out / "cells" / str(seed) / f"{sampler}-{budget}.json"
        cell = read_json(path) if path.is_file() else None
        if cell is None or cell["tasks"] != tasks:
            figures = _tuned(settings, dataset, split, base, tasks, seed) if tasks else _scored(base, dataset, split)
            write_json(path, {"sampler": sampler, "budget": budget, "seed": seed, "tasks": tasks, **figures})
            cell = read_json(path)
        cells.append(cell)
        console.print(f"seed {seed}, {budget} tasks, {sampler}: {cell['metrics']['mape']:.1f} % MAPE")
    return cells


def _tuned(
    settings: FinetuneSettings, dataset: LatencyDataset, split: Split, base: Predictor, tasks: Sequence[str], seed: int
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="cdmpp-curve-") as scratch:
        tuned = fine_tune(
            base, dataset, split, tasks, settings.tuning, Path(scratch) / "run", seed, settings.training.loss, False,
            settings.accelerator,
        )  # fmt: skip
        return _scored(tuned.predictor, dataset, split)


def _scored(predictor: Predictor, dataset: LatencyDataset, split: Split) -> dict[str, Any]:
    sources = errors_by_device(predictor, dataset, split.validation)
    figures = score(dataset, split.test, predict_rows(predictor, dataset, split.test))
    return {**figures, "source_validation_mape": {name: metrics["mape"] for name, metrics in sources.items()}}


def _command() -> str:
    return shlex.join(["python", "-m", "benchmarks.publish.sampling_curve", *sys.argv[1:]])


@entry("finetune")
def main(values: dict[str, Any]) -> None:
    """One curve, from the command line."""
    settings = FinetuneSettings.from_dict(values)
    with one_writer(settings.out):
        sampling_curve(settings)


if __name__ == "__main__":
    main()
