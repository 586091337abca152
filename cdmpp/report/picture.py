"""Picture: the dots with intervals of a report as PNG, by matplotlib."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.data.plots import save_plot
from cdmpp.report.charts import Dots
from cdmpp.report.report import Report
from cdmpp.units import shown, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_picture(report: Report, path: Path) -> None:
    """Write the first chart of dots; ``CdmppError`` where that cannot be, or without matplotlib."""
    chart = next(chart for chart in report.charts if isinstance(chart, Dots))
    title = visible(report.title).replace("$", r"\$")
    save_plot(path, (7.6, 1.6 + 0.45 * len(chart.dots)), title, partial(_draw, chart=chart))


def _draw(axes: Axes, chart: Dots) -> None:
    """A line for each number, in thousandths of its unit; hollow dots as on the page."""
    for place, dot in enumerate(chart.dots):
        middle = 1e3 * dot.value
        if dot.low is not None and dot.high is not None:
            ends = [1e3 * dot.low, 1e3 * dot.high]
            axes.plot(ends, [place, place], color="#1f6fb4", linewidth=3, alpha=0.35, solid_capstyle="round")
        axes.plot(middle, place, "o", color="#1f6fb4", markerfacecolor="white" if dot.is_hollow else "#1f6fb4")
        axes.annotate(shown(dot.value, chart.unit), (middle, place), (0, 7), textcoords="offset points", fontsize=8,
                      ha="center")  # fmt: skip
        if dot.measured:
            axes.plot(1e3 * dot.measured, place, "x", color="#e07b1a")
    notes = ["line: interval"] if any(dot.low for dot in chart.dots) else []
    notes += ["hollow: known by its datasheet only"] if any(dot.is_hollow for dot in chart.dots) else []
    notes += ["cross: measured"] if any(dot.measured for dot in chart.dots) else []
    axes.set_yticks(range(len(chart.dots)), [dot.name for dot in chart.dots])
    label = f"{chart.title.lower()} (m{chart.unit})\n{', '.join(notes)}".strip()
    axes.set(xscale="log", ylim=(len(chart.dots) - 0.4, -0.7), xlabel=label)
    axes.margins(x=0.25)
    axes.grid(axis="x", alpha=0.3)
    _plain(axes)


def _plain(axes: Axes) -> None:
    """Numbers instead of powers of ten, some of them also within a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
