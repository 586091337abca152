"""Pictures of a training run: predicted against measured, error by group, learning curve. PNG, by matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cdmpp.data.plots import save_plot
from cdmpp.training.metrics import latency_range_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _ORANGE, _GREY = "#1f6fb4", "#e07b1a", "#777777"


def save_training_plots(
    out_dir: Path,
    true_s: np.ndarray,
    predicted_s: np.ndarray,
    op_classes: Sequence[str] | np.ndarray,
    history: Sequence[Mapping[str, float]],
    title: str,
) -> list[Path]:
    """Save the pictures of m test programs and of ``history``, a row an epoch and member; return their paths."""
    ape, ranges = 100 * np.abs(predicted_s - true_s) / true_s, latency_range_labels(true_s)
    pictures: dict[str, tuple[float, Callable[[Axes], None]]] = {
        "predicted_vs_measured": (5.6, lambda axes: scatter(axes, true_s, predicted_s)),
        "error_by_op_class": (4.4, lambda axes: error_boxes(axes, ape, op_classes, "op class")),
        "error_by_latency": (4.4, lambda axes: error_boxes(axes, ape, ranges, "measured latency")),
        "learning_curve": (4.4, lambda axes: learning_curve(axes, history)),
    }
    return [save_plot(out_dir / f"{name}.png", (6.8, height), title, draw) for name, (height, draw) in pictures.items()]


def scatter(axes: Axes, true_s: np.ndarray, predicted_s: np.ndarray) -> None:
    """Plot predicted against measured on logarithmic axes, coloured by how many programs lie there."""
    true, predicted = np.asarray(true_s) * 1e6, np.asarray(predicted_s) * 1e6
    low, high = min(true.min(), predicted.min()) / 1.3, max(true.max(), predicted.max()) * 1.3
    span = np.log10([low, high])
    cells = axes.hexbin(
        true, predicted, gridsize=70, xscale="log", yscale="log", bins="log", mincnt=1, extent=(*span, *span)
    )
    line = np.array([low, high])
    axes.plot(line, line, color="black", linewidth=1, label="equal")
    axes.fill_between(line, line * 0.8, line * 1.2, color=_GREY, alpha=0.25, linewidth=0, label="within 20 %")
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set(xlabel="measured latency (µs)", ylabel="predicted latency (µs)")
    error = np.abs(predicted - true) / true
    facts = f"{len(true):,} programs\nMAPE {100 * error.mean():.1f} %\nmedian {100 * np.median(error):.1f} %"
    axes.text(0.97, 0.04, facts, transform=axes.transAxes, ha="right", va="bottom", fontsize=9)
    axes.legend(loc="upper left", frameon=False)
    axes.figure.colorbar(cells, ax=axes, label="programs per cell", shrink=0.85)


def error_boxes(axes: Axes, ape: np.ndarray, labels: Sequence[str] | np.ndarray, what: str) -> None:
    """Plot the absolute percentage error (m,) in each group: box = quartiles, whiskers = p10 and p90."""
    kinds = np.asarray(labels)
    names = sorted(set(kinds.tolist()))
    groups = [np.maximum(np.asarray(ape)[kinds == name], 1e-2) for name in names]
    styles: dict[str, Any] = {name: {"color": _BLUE} for name in ("whiskerprops", "capprops")}
    styles |= {"boxprops": {"facecolor": "#c6dbef", "edgecolor": _BLUE}}
    styles |= {"medianprops": {"color": _BLUE, "linewidth": 1.8}}
    axes.boxplot(groups, whis=(10, 90), showfliers=False, patch_artist=True, **styles)
    means = [group.mean() for group in groups]
    axes.plot(range(1, len(names) + 1), means, "D", color=_ORANGE, markersize=5, label="MAPE (mean)")
    axes.plot([], [], color=_BLUE, linewidth=1.8, label="median; box 25–75 %, whiskers 10–90 %")
    ticks = [f"{name.split(': ')[-1]}\nn={len(group):,}" for name, group in zip(names, groups, strict=True)]
    axes.set_xticks(range(1, len(names) + 1), ticks, rotation=0 if len(names) <= 7 else 30, fontsize=8)
    axes.set(xlabel=what, ylabel="absolute percentage error (%)", yscale="log")
    axes.grid(axis="y", alpha=0.3)
    axes.margins(y=0.22)
    plain_numbers(axes)
    axes.legend(loc="upper left", frameon=False, fontsize=8)


def learning_curve(axes: Axes, history: Sequence[Mapping[str, float]]) -> None:
    """Plot training loss (left) and validation errors (right) over epochs, a line for each ``member``."""
    right, members = axes.twinx(), sorted({row.get("member", 0) for row in history})
    errors = (right, "val_mape", "--", _ORANGE), (right, "val_median_ape", ":", _ORANGE)
    for target, name, style, colour in ((axes, "train_loss", "-", _BLUE), *errors):
        for member in members:
            rows = [row for row in history if row.get("member", 0) == member]
            label = name.replace("_", " ") if member == members[0] else None
            values = [row.get(name, np.nan) for row in rows]
            target.plot([row["epoch"] for row in rows], values, style, color=colour, linewidth=1.5, label=label)
    axes.set(xlabel="epoch", ylabel="training loss (no unit)", yscale="log")
    right.set(ylabel="validation error (%)", yscale="log")
    axes.grid(alpha=0.3)
    for target in (axes, right):
        plain_numbers(target)
    named = [line for line in (*axes.lines, *right.lines) if not str(line.get_label()).startswith("_")]
    axes.legend(handles=named, frameon=False, fontsize=9)


def plain_numbers(axes: Axes) -> None:
    """Write several plain numbers at a logarithmic y axis, within a decade too; call after all drawing."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = axes.get_ylim()
    wide = high / low > 10
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)) if wide else MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
