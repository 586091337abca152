"""The README's short table of figures, from ``docs/results.json``.

``python -m cdmpp.evaluation.readme`` rewrites what stands between ``<!-- figures -->`` and ``<!-- /figures -->``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.data.files import read_json, write_atomic
from cdmpp.errors import DataError

BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
COLUMNS = {"mape": "MAPE %", "median_ape": "median %", "spearman_within_task": "Spearman in task"}


def figures(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: one table a device and split, models best first, means over seeds.

    Raises:
        DataError: no rows.
    """
    if not rows:
        raise DataError("docs/results.json holds no rows; run scripts/evaluate.py first")
    parts = []
    for device, split in sorted({(row["device"], row["split"]) for row in rows}):
        here = [row for row in rows if (row["device"], row["split"]) == (device, split)]
        seeds = sorted({row["seed"] for row in here})
        first = here[0]
        parts.append(
            f"`{device}`, split `{split}`, seed {', '.join(map(str, seeds))}: "
            f"{first['n_programs']:,} test programs of {first['n_tasks']} tasks\n"
        )
        parts.append(f"| model | {' | '.join(COLUMNS.values())} |\n|---|{'---:|' * len(COLUMNS)}")
        table = {model: _means(here, model) for model in {row["model"] for row in here}}
        for model, means in sorted(table.items(), key=lambda item: item[1]["mape"]):
            shown = (f"{means[key]:.3f}" if key.startswith("spearman") else f"{means[key]:,.1f}" for key in COLUMNS)
            parts.append(f"| {model} | {' | '.join(shown)} |")
        parts.append("")
    return "\n".join(parts)


def _means(rows: Sequence[Mapping[str, Any]], model: str) -> dict[str, float]:
    return {
        key: float(
            np.mean([row["value"] for row in rows if row["model"] == model and row["metric"] == key] or [np.nan])
        )
        for key in COLUMNS
    }


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
    fill(Path("README.md"), Path("docs/results.json"))
