"""Pictures of data sets: what is there, how long it runs, how far labels and schedules spread. PNG."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cdmpp.data.statistics import DeviceStatistics
from cdmpp.errors import CdmppError
from cdmpp.platform.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 60
_COLOURS = 64


def save_data_plots(out_dir: Path, entries: Sequence[DeviceStatistics]) -> list[Path]:
    """Save the five pictures of ``entries`` and return their paths."""
    rows = len({name for entry in entries for name in entry.programs_by_network})
    sizes = {networks: (7.6, 1.6 + 0.17 * rows)}
    return [
        save_plot(out_dir / f"{draw.__name__}.png", sizes.get(draw, (7.2, 4.2)), "", partial(draw, entries=entries))
        for draw in (op_classes, networks, latency, spread, schedules)
    ]


def op_classes(axes: Axes, entries: Sequence[DeviceStatistics]) -> None:
    """Plot the programs per operator class and device."""
    names = list(dict.fromkeys(name for entry in entries for name in entry.programs_by_class))
    width = 0.8 / len(entries)
    for i, entry in enumerate(entries):
        counts = [entry.programs_by_class.get(name, 0) for name in names]
        axes.bar(np.arange(len(names)) + i * width, counts, width, label=entry.device)
    axes.set_xticks(np.arange(len(names)) + 0.4 - width / 2, names, rotation=30, ha="right")
    axes.set(ylabel="programs", title="Programs by op class")
    axes.legend(frameon=False)


def networks(axes: Axes, entries: Sequence[DeviceStatistics]) -> None:
    """Plot the programs of each network and operator class, all devices together."""
    names = sorted({name for entry in entries for name in entry.programs_by_network})
    classes = list(dict.fromkeys(name for entry in entries for name in entry.programs_by_class))
    tables = [entry.programs_by_network for entry in entries]
    counts = np.array([[sum(t.get(name, {}).get(c, 0) for t in tables) for c in classes] for name in names], float)
    image = axes.imshow(np.where(counts > 0, counts, np.nan), aspect="auto", norm="log", cmap="viridis")
    axes.set_xticks(range(len(classes)), classes, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names, fontsize=6.5)
    axes.set_title("Programs by network and op class, all devices")
    axes.figure.colorbar(image, ax=axes, label="programs", shrink=0.6)


def latency(axes: Axes, entries: Sequence[DeviceStatistics]) -> None:
    """Plot a histogram of the labels."""
    every = np.concatenate([entry.latency_s for entry in entries]) * 1e6
    edges = np.geomspace(every.min() * 0.9, every.max() * 1.1, _BINS)
    for entry in entries:
        axes.hist(entry.latency_s * 1e6, edges.tolist(), histtype="step", linewidth=1.5, label=entry.device)
    axes.set(xscale="log", xlabel="latency (µs)", ylabel="programs", title="Latency of the programs")
    axes.legend(frameon=False)


def spread(axes: Axes, entries: Sequence[DeviceStatistics]) -> None:
    """Plot the share of programs whose two best visits differ by less than x."""
    for entry in entries:
        axes.ecdf((100 * entry.spread).clip(1e-3), label=entry.device)
        if entry.noise is not None:
            text = f"{entry.device}: mean change after {entry.noise.hours_apart:.0f} h"
            axes.axvline(100 * entry.noise.mean, linestyle="--", linewidth=1, color="black", label=text)
    axes.axvline(5, color="grey", linewidth=1, label="flagged above")
    axes.set(xscale="log", xlim=(1e-2, 1e2), ylabel="share of programs below", title="Noise of the labels")
    axes.set_xlabel("difference of the two best visits (%)")
    axes.legend(frameon=False, fontsize=8)


def schedules(axes: Axes, entries: Sequence[DeviceStatistics]) -> None:
    """Plot how far the schedules of one task lie apart."""
    for entry in entries:
        if len(entry.schedule_range):
            axes.ecdf(entry.schedule_range, label=f"{entry.device}: slowest / fastest")
            axes.ecdf(entry.best_over_typical, linestyle=":", label=f"{entry.device}: median / fastest")
    axes.set(xscale="log", xlabel="ratio of latencies within a task", ylabel="share of tasks below")
    axes.set_title("Quality of the schedules of a task")
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)


def save_plot(path: Path, size: tuple[float, float], title: str, draw: Callable[[Axes], None]) -> Path:
    """Draw on the axes of a new figure of ``size`` inches, save it as PNG; ``CdmppError`` without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from PIL import Image  # which matplotlib needs itself
    except ImportError as error:
        raise CdmppError("plots need matplotlib: pip install 'cdmpp[plots]'") from error
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    draw(axes := figure.add_subplot())
    if title:
        axes.set_title(title, fontsize=10)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=130, format="png")
    # A chart has few colours: with a palette the file is a third as large. Rare colours keep their hue by k-means.
    small = Image.open(drawn).convert("RGB").quantize(_COLOURS, kmeans=2, dither=Image.Dither.NONE)
    write_atomic(path, lambda temporary: small.save(temporary, format="png", optimize=True))
    return path
