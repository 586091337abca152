"""The table of figures in ``docs/results/accuracy.md``, from ``docs/results.csv``.

``python -m benchmarks.publish.readme`` rewrites what stands between ``<!-- figures -->`` and ``<!-- /figures -->``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.publish.markdown import replace_part, table
from cdmpp.errors import DataError
from cdmpp.evaluation.results import Result, read_results

VARIANTS = ("_tasks", "_schedules", "_labels", "_adapt", "unlabelled_")
"""In the names of splits that are only in docs/results, as are experiments on data sets of other names."""
OPERATORS = "torch-"
"""Begins the names of data sets of library operators, which have a page of their own."""
METRICS = ("mape", "median_ape")


def figures(results: Sequence[Result]) -> str:
    """Markdown: a row a data set and split, a column a model; means over seeds.

    Raises:
        DataError: no results.
    """
    if not results:
        raise DataError("docs/results.csv holds no rows; run `cdmpp model evaluate` and publish.results first")
    shown = [result for result in results if _is_main(result) and result.metric in METRICS]
    cells: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for result in sorted(shown, key=lambda result: (result.dataset, result.split)):
        cells.setdefault((result.dataset, result.split), {}).setdefault(result.model, []).append(result)
    models = sorted({result.model for result in shown}, key=lambda model: _place(cells, model))
    rows = [
        [f"`{dataset}`", f"`{split}`", *(_text(by_model.get(model, [])) for model in models)]
        for (dataset, split), by_model in cells.items()
    ]
    seeds = max(len({result.seed for result in shown}), 1)
    title = f"MAPE / median error in % on held-out programs, means over {seeds} seeds; (1): one seed."
    return "\n".join([title, "", *table(["data", "split", *models], rows)])


def _is_main(result: Result) -> bool:
    if result.dataset.startswith(OPERATORS):
        return False
    several = "+" in result.device
    return (several or result.dataset == result.device) and not any(mark in result.split for mark in VARIANTS)


def _place(cells: Mapping[tuple[str, str], Mapping[str, Sequence[Result]]], model: str) -> tuple[int, float]:
    """Models of most devices and splits come first, the better ones before the others."""
    means = [_mean(by_model[model], "mape") for by_model in cells.values() if model in by_model]
    return -len(means), float(np.median(means))


def _mean(results: Iterable[Result], metric: str) -> float:
    return float(np.mean([result.value for result in results if result.metric == metric] or [np.nan]))


def _text(results: Sequence[Result]) -> str:
    if not results:
        return "-"
    text = f"{_mean(results, 'mape'):,.1f} / {_mean(results, 'median_ape'):.1f}"
    return text if len({result.seed for result in results}) > 1 else f"{text} (1)"


if __name__ == "__main__":
    replace_part(Path("docs/results/accuracy.md"), "figures", figures(read_results(Path("docs"))))
