"""The short tables of figures in ``docs/accuracy.md``, from ``docs/results.json``.

``python -m benchmarks.publish.readme`` rewrites what stands between ``<!-- figures -->`` and ``<!-- /figures -->``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.data.files import read_json, write_atomic
from cdmpp.errors import DataError

BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
VARIANTS = ("_tasks", "_schedules", "_labels", "_adapt")
"""Ends of the names of splits that are only in docs/RESULTS.md, as are experiments on data sets of other names."""
METRICS = ("mape", "median_ape", "spearman_within_task")


def figures(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: one table a device, models best first, splits side by side, means over seeds.

    Raises:
        DataError: no rows.
    """
    if not rows:
        raise DataError("docs/results.json holds no rows; run scripts/evaluate.py first")
    shown = [row for row in rows if _is_main(row)]
    return "\n".join(
        _device_table(device, [r for r in shown if r["device"] == device]) for device in _unique(shown, "device")
    )


def _is_main(row: Mapping[str, Any]) -> bool:
    several = "+" in row["device"]
    return (several or row["dataset"] == row["device"]) and not row["split"].endswith(VARIANTS)


def _device_table(device: str, rows: Sequence[Mapping[str, Any]]) -> str:
    splits, seeds = _unique(rows, "split"), _unique(rows, "seed")
    head = [
        f"`{device}`, seeds {', '.join(map(str, seeds))}; held-out programs: MAPE / median error in %, Spearman",
        "",
    ]
    head += ["| model | " + " | ".join(f"`{split}`" for split in splits) + " |", "|---|" + "---:|" * len(splits)]
    table = {
        model: [_means([r for r in rows if (r["model"], r["split"]) == (model, split)]) for split in splits]
        for model in _unique(rows, "model")
    }
    lines = []
    for model, cells in sorted(table.items(), key=lambda item: np.nanmean([cell["mape"] for cell in item[1]])):
        texts = [_cell(cell, len(seeds)) for cell in cells]
        lines.append(f"| {model} | {' | '.join(texts)} |")
    return "\n".join([*head, *lines, ""])


def _cell(means: Mapping[str, float], n_seeds: int) -> str:
    if np.isnan(means["mape"]):
        return "-"
    text = f"{means['mape']:,.1f} / {means['median_ape']:.1f}, {means['spearman_within_task']:.3f}"
    return text if means["seeds"] == n_seeds else f"{text} ({means['seeds']:.0f} seed{'s' * (means['seeds'] > 1)})"


def _unique(rows: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    return sorted({row[key] for row in rows})


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    means = {key: np.mean([r["value"] for r in rows if r["metric"] == key] or [np.nan]) for key in METRICS}
    return {**means, "seeds": len({row["seed"] for row in rows})}


def fill(readme: Path, results: Path) -> None:
    """Replace the marked part of ``readme`` by the figures of ``results``."""
    text = readme.read_text()
    if BEGIN not in text or END not in text:
        raise DataError(f"{readme} lacks the marks {BEGIN} and {END}")
    head, rest = text.split(BEGIN, 1)
    new = f"{head}{BEGIN}\n\n{figures(read_json(results))}\n{END}{rest.split(END, 1)[1]}"

    def write(path: Path) -> None:
        path.write_text(new)

    write_atomic(readme, write)


if __name__ == "__main__":
    fill(Path("docs/accuracy.md"), Path("docs/results.json"))
