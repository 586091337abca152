"""Report at the end of a training run: validation figures, the test table with baselines, plots, the model folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.evaluation.baselines import score_baselines
from cdmpp.model.code_prior import MIN_PROGRAMS
from cdmpp.platform.files import plain, write_json
from cdmpp.predict.rows import predict_rows_with_intervals
from cdmpp.predict.stored_config import CARD
from cdmpp.recipes.settings import RunSettings
from cdmpp.recipes.train import Trained
from cdmpp.report.metric_table import metric_table
from cdmpp.report.report import Report, Total
from cdmpp.report.text import print_report
from cdmpp.training.metrics import score
from cdmpp.training.threads import FreeThreads
from cdmpp.uncertainty.calibration import Calibration
from cdmpp.uncertainty.coverage import coverage
from cdmpp.units import SHARE

_ON_ANY_VECTORS = ("constant", "roofline", "xgb_ours")
"""Baselines that need neither our kernel numbers nor a schedule."""


def report(dataset: LatencyDataset, split: Split, trained: Trained, settings: RunSettings) -> dict[str, Any]:
    """Score the test part (its only use), show it, save ``test.json`` and plots next to the model.

    Returns the figures that ``test.json`` holds.
    """
    out, calibration = settings.run.out, trained.predictor.calibration
    predicted, intervals = predict_rows_with_intervals(trained.predictor, dataset, split.test)
    own = score(dataset, split.test, predicted)
    true, task_ids = dataset.latency_s[split.test], np.asarray(dataset.task_ids)
    own["intervals"] = coverage(true, intervals, task_ids[split.test])
    figures = _figures(dataset, split, settings, own)
    write_json(out / "test.json", plain(figures))
    warnings = thin_data(split, dataset.task_ids, calibration)
    if warnings:
        trained.predictor.card["warnings"] = warnings
        write_json(trained.model_dir / CARD, trained.predictor.card)
    places = {"model": f"{trained.model_dir}   (cdmpp.load_model({str(trained.model_dir)!r}))"}
    if settings.plots:
        from cdmpp.evaluation.plots import save_training_plots

        op_classes = np.asarray(dataset.op_classes)[split.test]
        save_training_plots(out / "plots", true, predicted, op_classes, trained.history, _title(settings, split))
        places["plots"] = str(out / "plots")
    name = settings.training.model.name
    print_report(
        Report(
            title=_title(settings, split),
            answer=figures,
            totals=(
                *_sizes(split, task_ids),
                *_coverages(own["intervals"], calibration),
                *(Total(what, place) for what, place in places.items()),
            ),
            tables=(
                metric_table("validation", {"saved model": trained.val_metrics}, "saved model"),
                metric_table(f"test, {len(split.test):,} programs of split {split.name}", figures["models"], name),
            ),
            warnings=tuple(warnings),
        )
    )
    for warning in warnings:
        print(f"WARNING {warning}")
    return figures


def _title(settings: RunSettings, split: Split) -> str:
    return f"{settings.title}, split {split.name}, seed {settings.run.seed}"


def _figures(dataset: LatencyDataset, split: Split, settings: RunSettings, own: dict[str, Any]) -> dict[str, Any]:
    """The figures of the model and of the baselines that can read the data."""
    ours = dataset.features == "cdmpp"
    baselines = [name for name in settings.baselines if ours or name in _ON_ANY_VECTORS]
    threads = min(settings.threads, FreeThreads().adapt())
    rows = score_baselines(dataset, split, baselines, settings.run.seed, threads)
    rows[settings.training.model.name] = own["metrics"]
    return {"device": settings.title, "split": split.name, "seed": settings.run.seed, **own, "models": rows}


def _sizes(split: Split, task_ids: np.ndarray) -> list[Total]:
    parts = {"training": split.train, "validation": split.validation, "test": split.test}
    return [
        Total(name, f"{len(rows):,} programs", note=f"{len(np.unique(task_ids[rows]))} tasks")
        for name, rows in parts.items()
    ]


def _coverages(covered: dict[str, Any], calibration: Calibration | None) -> list[Total]:
    promised = calibration.conformal.promised() if calibration else {}
    return [
        Total(
            "intervals", figure["coverage"] / 100, SHARE,
            note=f"of the test programs lie in intervals that promise {100 * promised[float(level)]:g} %; "
            f"{figure['task_coverage']:.1f} % by task; upper over lower bound {figure['width']:.2f}",
        )
        for level, figure in covered.items()
    ]  # fmt: skip


def thin_data(split: Split, tasks_of: Sequence[str] | np.ndarray, calibration: Calibration | None) -> list[str]:
    """Warn about a model of few data: a sentence each for training and for the intervals."""
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
