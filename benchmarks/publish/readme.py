"""The short tables of figures in ``docs/accuracy.md``, from ``docs/results.csv``.

``python -m benchmarks.publish.readme`` rewrites what stands between ``<!-- figures -->`` and ``<!-- /figures -->``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.publish.markdown import table, write_page
from cdmpp.errors import DataError
from cdmpp.evaluation.results import Result, read_results

BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
VARIANTS = ("_tasks", "_schedules", "_labels", "_adapt", "unlabelled_")
"""In the names of splits that are only in docs/results, as are experiments on data sets of other names."""
METRICS = ("mape", "median_ape", "spearman_within_task")


def figures(results: Sequence[Result]) -> str:
    """Markdown: one table a device, models best first, splits side by side, means over seeds.

    Raises:
        DataError: no results.
    """
    if not results:
        raise DataError("docs/results.csv holds no rows; run `cdmpp evaluate` and benchmarks.publish.results first")
    shown = [result for result in results if _is_main(result)]
    devices = _unique(shown, "device")
    return "\n".join(_device_table(name, [result for result in shown if result.device == name]) for name in devices)


def _is_main(result: Result) -> bool:
    several = "+" in result.device
    return (several or result.dataset == result.device) and not any(mark in result.split for mark in VARIANTS)


def _device_table(device: str, results: Sequence[Result]) -> str:
    splits, seeds = _unique(results, "split"), _unique(results, "seed")
    means = {
        model: [_means(r for r in results if (r.model, r.split) == (model, split)) for split in splits]
        for model in _unique(results, "model")
    }
    best_first = sorted(means.items(), key=lambda item: np.nanmean([figures["mape"] for figures in item[1]]))
    rows = [[model, *(_text(figures, len(seeds)) for figures in row)] for model, row in best_first]
    title = f"`{device}`, seeds {', '.join(map(str, seeds))}; held-out programs: MAPE / median error in %, Spearman"
    return "\n".join([title, "", *table(["model", *(f"`{split}`" for split in splits)], rows), ""])


def _text(means: dict[str, float], n_seeds: int) -> str:
    if np.isnan(means["mape"]):
        return "-"
    text = f"{means['mape']:,.1f} / {means['median_ape']:.1f}, {means['spearman_within_task']:.3f}"
    return text if means["seeds"] == n_seeds else f"{text} ({means['seeds']:.0f} seed{'s' * (means['seeds'] > 1)})"


def _unique(results: Iterable[Result], key: str) -> list[Any]:
    return sorted({getattr(result, key) for result in results})


def _means(results: Iterable[Result]) -> dict[str, float]:
    own = list(results)
    means = {key: float(np.mean([r.value for r in own if r.metric == key] or [np.nan])) for key in METRICS}
    return {**means, "seeds": len({result.seed for result in own})}


def fill(page: Path, results: Sequence[Result]) -> None:
    """Replace the marked part of ``page`` by the figures of ``results``."""
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise DataError(f"{page} lacks the marks {BEGIN} and {END}")
    head, rest = text.split(BEGIN, 1)
    write_page(page, [f"{head}{BEGIN}\n\n{figures(results)}\n{END}{rest.split(END, 1)[1]}"])


if __name__ == "__main__":
    fill(Path("docs/accuracy.md"), read_results(Path("docs")))
