"""What a training run shows at its end: validation figures, the test table with baselines, plots, the model folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from cdmpp.data.files import plain, write_json
from cdmpp.data.splits import Split
from cdmpp.evaluation.cell import score
from cdmpp.evaluation.coverage import coverage
from cdmpp.evaluation.report import add_name_column
from cdmpp.evaluation.run import score_baselines
from cdmpp.model.code_anchor import MIN_PROGRAMS
from cdmpp.predict.rows import predict_rows_with_intervals
from cdmpp.predict.stored_config import CARD

if TYPE_CHECKING:
    from cdmpp.data.dataset import LatencyDataset
    from cdmpp.recipes.settings import RunSettings
    from cdmpp.training.fit import FitResult
    from cdmpp.uncertainty.calibration import Calibration

_ON_ANY_VECTORS = ("constant", "roofline", "xgb_ours")
"""Baselines that need neither our kernel numbers nor a schedule."""
_COLUMNS = {
    "mape": "MAPE %",
    "median_ape": "median %",
    "p90_ape": "p90 %",
    "within_20": "within 20 %",
    "spearman_within_task": "Spearman in task",
    "top1_regret": "top-1 regret",
}


def report(dataset: LatencyDataset, split: Split, result: FitResult, settings: RunSettings) -> dict[str, Any]:
    """Score the test part (its only use), print, save ``test.json`` and plots beside the model; returns the figures."""
    console = Console()
    _print_parts(console, dataset, split, result)
    predicted, intervals = predict_rows_with_intervals(result.predictor, dataset, split.test)
    mine = score(dataset, split.test, predicted)
    true, tasks = dataset.latency_s[split.test], np.asarray(dataset.task_ids)[split.test]
    mine["intervals"] = coverage(true, intervals, tasks)
    ours = dataset.features == "cdmpp"
    names = [name for name in settings.baselines if ours or name in _ON_ANY_VECTORS]
    rows = score_baselines(dataset, split, names, settings.seed, settings.threads)
    rows[settings.training.model.name] = mine["metrics"]
    figures = {"device": settings.title, "split": split.name, "seed": settings.seed, **mine, "models": rows}
    write_json(settings.out / "test.json", plain(figures))
    console.print(
        metric_table(f"test, {len(split.test):,} programs of split {split.name}", rows, settings.training.model.name)
    )
    calibration = result.predictor.calibration
    promised = calibration.conformal.promised() if calibration else {}
    for level, figure in mine["intervals"].items():
        console.print(
            f"intervals that promise {100 * promised[float(level)]:g} %: {figure['coverage']:.1f} % of the test "
            f"programs are inside ({figure['task_coverage']:.1f} % by task), upper / lower {figure['width']:.2f}",
            soft_wrap=True,
        )
    if settings.plots:
        from cdmpp.evaluation.plots import save_training_plots

        save_training_plots(
            settings.out / "plots",
            dataset.latency_s[split.test],
            predicted,
            np.asarray(dataset.op_classes)[split.test],
            result.history,
            f"{settings.title}, split {split.name}, seed {settings.seed}",
        )
        console.print(f"plots: {settings.out / 'plots'}", soft_wrap=True)
    if warnings := thin_data(split, tasks_of=dataset.task_ids, calibration=calibration):
        result.predictor.card["warnings"] = warnings
        write_json(result.model_dir / CARD, result.predictor.card)
        for warning in warnings:
            console.print(f"[bold red]WARNING[/] {warning}", soft_wrap=True)
    console.print(f"model: [bold]{result.model_dir}[/]   (cdmpp.load({str(result.model_dir)!r}))", soft_wrap=True)
    return figures


def thin_data(split: Split, tasks_of: Sequence[str] | np.ndarray, calibration: Calibration | None) -> list[str]:
    """What a reader must know of a model of few data: a sentence each for training and for the intervals."""
    found, n_tasks = [], len(np.unique(np.asarray(tasks_of)[split.train]))
    if len(split.train) < MIN_PROGRAMS:
        found.append(
            f"only {len(split.train)} programs of {n_tasks} tasks to learn from, fewer than {MIN_PROGRAMS}: expect "
            "larger errors on other tasks than the figures say, and measure more"
        )
    short = {level: p for level, p in (calibration.conformal.promised() if calibration else {}).items() if p < level}
    if calibration and short:
        vouch = int(calibration.conformal.n_tasks[0])
        told = ", ".join(f"of {100 * level:g} % can promise {100 * promise:g} %" for level, promise in short.items())
        needed = ", ".join(f"{np.ceil(level / (1 - level) - 1e-9):.0f} for {100 * level:g} %" for level in short)
        found.append(
            f"only {vouch} {'task vouches' if vouch == 1 else 'tasks vouch'} for the intervals, so those {told} of the "
            f"programs of a new task. Tasks that the validation part needs: {needed}"
        )
    return found


def _print_parts(console: Console, dataset: LatencyDataset, split: Split, result: FitResult) -> None:
    tasks = np.asarray(dataset.task_ids)
    parts = {"training": split.train, "validation": split.validation, "test": split.test}
    sizes = ", ".join(f"{len(rows):,} {name} ({len(np.unique(tasks[rows]))} tasks)" for name, rows in parts.items())
    console.print(f"programs: {sizes}")
    console.print(metric_table("validation", {"saved model": result.val_metrics}, "saved model"))


def metric_table(title: str, rows: Mapping[str, Mapping[str, float]], strong: str) -> Table:
    """A row a model, a column a metric; ``strong`` names the row to stand out."""
    table = Table(title=title, title_justify="left")
    add_name_column(table, "model", rows)
    for heading in _COLUMNS.values():
        table.add_column(heading, justify="right", overflow="fold")
    for name, metrics in rows.items():
        values = [
            _number(metrics.get(key), 3 if key == "spearman_within_task" or "regret" in key else 1) for key in _COLUMNS
        ]
        table.add_row(name, *values, style="bold" if name == strong else "")
    return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None or np.isnan(value) else f"{value:.{digits}f}"
