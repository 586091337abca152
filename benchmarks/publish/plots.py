"""Pictures of documents: errors of all models on all splits, errors against the tasks measured on a new device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cdmpp.data.plots import save_plot
from cdmpp.evaluation.plots import plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def model_bars(axes: Axes, cells: Sequence[Mapping[str, Any]], metric: str = "mape", label: str = "MAPE (%)") -> None:
    """A metric of every model on every split, bars with the standard deviation over seeds."""
    splits = list(dict.fromkeys(cell["split"] for cell in cells))
    values: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        if metric in cell["metrics"]:
            values.setdefault((cell["split"], cell["model"]), []).append(cell["metrics"][metric])
    overall = {m: np.mean([v for (_, model), vs in values.items() if model == m for v in vs]) for _, m in values}
    models = sorted(overall, key=lambda model: -overall[model])
    width = 0.84 / max(1, len(models))
    for index, model in enumerate(models):
        at = [i for i, split in enumerate(splits) if (split, model) in values]
        means = [np.mean(values[splits[i], model]) for i in at]
        spreads = [np.std(values[splits[i], model]) for i in at]
        places = np.array(at) + (index - (len(models) - 1) / 2) * width
        axes.bar(places, means, width, yerr=spreads, label=model, capsize=2, color=_colour(index, len(models)))
    axes.set_xticks(range(len(splits)), [split.replace("by_network_", "").replace("_", " ") for split in splits])
    axes.set(ylabel=label, yscale="log")
    plain_numbers(axes)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def save_evaluation_plot(path: Path, cells: Sequence[Mapping[str, Any]], title: str = "") -> Path:
    """The bars of ``model_bars`` as a PNG."""
    splits = len({cell["split"] for cell in cells})
    return save_plot(path, (4.0 + 2.4 * splits, 4.6), title, lambda axes: model_bars(axes, cells))


def _colour(index: int, count: int) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](0.08 + 0.84 * index / max(1, count - 1))


def save_budget_plot(path: Path, curves: Mapping[str, Mapping[int, tuple[float, float]]], title: str) -> Path:
    """Mean error with its spread over seeds against tasks measured: a line a sampler, a dashed one for a lone budget 0.

    Args:
        curves: sampler -> budget in tasks -> (mean, standard deviation) of the MAPE in percent.
    """

    def draw(axes: Axes) -> None:
        for name, points in curves.items():
            budgets = sorted(points)
            means = [points[budget][0] for budget in budgets]
            if budgets == [0]:
                axes.axhline(
                    means[0], color="#777777", linestyle="--", linewidth=1.2, label=f"{name} (no task measured)"
                )
            else:
                axes.errorbar(budgets, means, [points[b][1] for b in budgets], marker="o", capsize=3, label=name)
        axes.set(xlabel="tasks measured on the new device", ylabel="MAPE on its other tasks (%)")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)

    return save_plot(path, (6.8, 4.4), title, draw)
