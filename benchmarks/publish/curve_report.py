"""The error of a new device against the tasks measured on it: on the terminal and as a page."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.publish import markdown
from benchmarks.publish.results import put_page
from cdmpp.evaluation.results import Result, Run

ZERO_SHOT = "zero-shot"
_TABLES = (("mape", "MAPE %", 1), ("median_ape", "Median error %", 1), ("top1_regret", "Top-1 regret", 3))


def summary(cells: Sequence[Mapping[str, Any]], metric: str = "mape") -> dict[str, dict[int, tuple[float, float]]]:
    """Sampler -> budget -> mean and standard deviation over seeds of ``metric`` on the test part."""
    values: dict[str, dict[int, list[float]]] = {}
    for cell in cells:
        values.setdefault(cell["sampler"], {}).setdefault(cell["budget"], []).append(cell["metrics"][metric])
    return {
        sampler: {budget: (float(np.mean(errors)), float(np.std(errors))) for budget, errors in sorted(budgets.items())}
        for sampler, budgets in values.items()
    }


def curve_table(cells: Sequence[Mapping[str, Any]], title: str) -> Table:
    """A row a budget, a column a sampler; what each gains over random beside it."""
    means = summary(cells)
    samplers = [name for name in means if name != ZERO_SHOT]
    zero_mean, zero_std = means[ZERO_SHOT][0]
    table = Table("tasks", title=title, title_justify="left")
    for name in samplers:
        table.add_column(name, overflow="fold")
    table.add_row("0", *([f"{zero_mean:.1f} ± {zero_std:.1f}"] * len(samplers)))
    for budget in sorted({budget for name in samplers for budget in means[name]}):
        row = []
        for name in samplers:
            mean, spread = means[name][budget]
            random = means.get("random", {}).get(budget)
            gain = f" ({100 * (mean / random[0] - 1):+.0f} %)" if random and name != "random" else ""
            row.append(f"{mean:.1f} ± {spread:.1f}{gain}")
        table.add_row(str(budget), *row)
    return table


def curve_name(device: str) -> str:
    """Return the name of the page of ``device``, which is also that of the data set of its figures."""
    return f"few-labels-{device}"


def publish_curve(
    cells: Sequence[Mapping[str, Any]], device: str, sources: Sequence[str], picture: Path, docs: Path, command: str
) -> None:
    """Write figures (split ``K_tasks``, model: the sampler), page and plot of a curve's ``cells`` into ``docs``."""
    name, date = curve_name(device), datetime.datetime.now(datetime.UTC).date().isoformat()
    results = [
        Result(
            device,
            name,
            f"{cell['budget']}_tasks",
            cell["seed"],
            cell["sampler"],
            metric,
            value,
            Run(command, date, "", cell["n_programs"], cell["n_tasks"]),
        )
        for cell in cells
        for metric, value in cell["metrics"].items()
    ]
    image = docs / "images" / f"{name}.png"
    image.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(picture, image)
    seeds, tests = sorted({cell["seed"] for cell in cells}), sorted({f"{cell['n_tasks']:,}" for cell in cells})
    lines = [
        f"# {name}",
        "",
        f"A model of {' and '.join(sources)}, tuned with the labels of K tasks of {device} that a sampler chose; "
        f"tested on {' or '.join(tests)} other tasks that neither saw on any device; seeds "
        f"{', '.join(map(str, seeds))}. Command: `{command}` ({date}).",
        "",
    ]
    for metric, title, digits in _TABLES:
        lines += [f"{title} (mean ± standard deviation over seeds):", "", *_table(cells, metric, digits), ""]
    put_page(docs, name, [*lines, f"![{name}](../images/{name}.png)"], results)


def _table(cells: Sequence[Mapping[str, Any]], metric: str, digits: int) -> list[str]:
    means = summary(cells, metric)
    samplers = [name for name in means if name != ZERO_SHOT]
    rows = [[0, *[means[ZERO_SHOT][0]] * len(samplers)]] if ZERO_SHOT in means else []
    for budget in sorted({budget for name in samplers for budget in means[name]}):
        rows.append([budget, *(means[name][budget] for name in samplers)])
    texts = [[budget, *(f"{mean:.{digits}f} ± {spread:.{digits}f}" for mean, spread in row)] for budget, *row in rows]
    return markdown.table(["tasks", *samplers], texts, left=0)
