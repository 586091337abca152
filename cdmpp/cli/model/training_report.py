"""What a training run shows at its end: validation figures, the test table with baselines, plots, the model folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.evaluation.baselines import score_baselines
from cdmpp.evaluation.metric_table import metric_table
from cdmpp.model.code_anchor import MIN_PROGRAMS
from cdmpp.platform.files import plain, write_json
from cdmpp.predict.rows import predict_rows_with_intervals
from cdmpp.predict.stored_config import CARD
from cdmpp.recipes.settings import RunSettings
from cdmpp.recipes.train import Trained
from cdmpp.training.metrics import score
from cdmpp.uncertainty.calibration import Calibration
from cdmpp.uncertainty.coverage import coverage

_ON_ANY_VECTORS = ("constant", "roofline", "xgb_ours")
"""Baselines that need neither our kernel numbers nor a schedule."""


def report(dataset: LatencyDataset, split: Split, trained: Trained, settings: RunSettings) -> dict[str, Any]:
    """Score the test part (its only use), print, save ``test.json`` and plots beside the model; returns the figures."""
    console, out, seed = Console(soft_wrap=True), settings.run.out, settings.run.seed
    name, calibration = settings.training.model.name, trained.predictor.calibration
    task_ids = np.asarray(dataset.task_ids)
    parts = {"training": split.train, "validation": split.validation, "test": split.test}
    sizes = [f"{len(rows):,} {part} ({len(np.unique(task_ids[rows]))} tasks)" for part, rows in parts.items()]
    console.print(f"programs: {', '.join(sizes)}")
    console.print(metric_table("validation", {"saved model": trained.val_metrics}, "saved model"))
    predicted, intervals = predict_rows_with_intervals(trained.predictor, dataset, split.test)
    own = score(dataset, split.test, predicted)
    true = dataset.latency_s[split.test]
    own["intervals"] = coverage(true, intervals, task_ids[split.test])
    ours = dataset.features == "cdmpp"
    baselines = [baseline for baseline in settings.baselines if ours or baseline in _ON_ANY_VECTORS]
    rows = score_baselines(dataset, split, baselines, seed, settings.threads)
    rows[name] = own["metrics"]
    figures = {"device": settings.title, "split": split.name, "seed": seed, **own, "models": rows}
    write_json(out / "test.json", plain(figures))
    console.print(metric_table(f"test, {len(split.test):,} programs of split {split.name}", rows, name))
    promised = calibration.conformal.promised() if calibration else {}
    for level, figure in own["intervals"].items():
        console.print(
            f"intervals that promise {100 * promised[float(level)]:g} %: {figure['coverage']:.1f} % of the test "
            f"programs are inside ({figure['task_coverage']:.1f} % by task), upper / lower {figure['width']:.2f}"
        )
    if settings.plots:
        from cdmpp.evaluation.plots import save_training_plots

        title = f"{settings.title}, split {split.name}, seed {seed}"
        op_classes = np.asarray(dataset.op_classes)[split.test]
        save_training_plots(out / "plots", true, predicted, op_classes, trained.history, title)
        console.print(f"plots: {out / 'plots'}")
    if warnings := thin_data(split, dataset.task_ids, calibration):
        trained.predictor.card["warnings"] = warnings
        write_json(trained.model_dir / CARD, trained.predictor.card)
        for warning in warnings:
            console.print(f"[bold red]WARNING[/] {warning}")
    console.print(f"model: [bold]{trained.model_dir}[/]   (cdmpp.load({str(trained.model_dir)!r}))")
    return figures


def thin_data(split: Split, tasks_of: Sequence[str] | np.ndarray, calibration: Calibration | None) -> list[str]:
    """What a reader must know of a model of few data: a sentence each for training and for the intervals."""
    warnings, n_tasks = [], len(np.unique(np.asarray(tasks_of)[split.train]))
    if len(split.train) < MIN_PROGRAMS:
        warnings.append(
            f"only {len(split.train)} programs of {n_tasks} tasks to learn from, fewer than {MIN_PROGRAMS}: expect "
            "larger errors on other tasks than the figures say, and measure more"
        )
    promised = calibration.conformal.promised() if calibration else {}
    short = {level: promise for level, promise in promised.items() if promise < level}
    if calibration and short:
        promises = ", ".join(f"of {100 * level:g} % can promise {100 * p:g} %" for level, p in short.items())
        needed = ", ".join(f"{np.ceil(level / (1 - level) - 1e-9):.0f} for {100 * level:g} %" for level in short)
        warnings.append(
            f"tasks that vouch for the intervals: only {calibration.conformal.n_tasks[0]}, so those {promises} of the "
            f"programs of a new task. Tasks that the validation part needs: {needed}"
        )
    return warnings
