"""Picture: the dots with intervals of a report, or series of points, as PNG, by matplotlib."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.data.plots import save_plot
from cdmpp.report.charts import Dots, Point
from cdmpp.report.report import Report
from cdmpp.units import shown, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


def write_picture(report: Report, path: Path) -> None:
    """Write the first chart of dots; ``CdmppError`` where that cannot be, or without matplotlib."""
    chart = next(chart for chart in report.charts if isinstance(chart, Dots))
    save_plot(path, (7.6, 1.6 + 0.45 * len(chart.dots)), _safe(report.title), partial(_draw, chart=chart))


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
    _plain(axes.xaxis)


def write_points(
    path: Path, title: str, series: Mapping[str, Sequence[Point]], x: str, y: str, joined: Collection[str]
) -> None:
    """Write series of points on two logarithmic axes; ``CdmppError`` where that cannot be, or without matplotlib.

    Args:
        path: of the PNG file.
        title: above the picture.
        series: label -> points.
        x: name and unit of the numbers from left to right.
        y: the same of those from bottom to top.
        joined: labels of the series that are lines.
    """

    def draw(axes: Axes) -> None:
        for label, own in series.items():
            line = "-" if label in joined else "o"
            axes.plot([one.x for one in own], [one.y for one in own], line, label=visible(label), markersize=5)
        axes.set(xscale="log", yscale="log", xlabel=_safe(x), ylabel=_safe(y))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        _plain(axes.xaxis)
        _plain(axes.yaxis)

    save_plot(path, (7.6, 4.6), _safe(title), draw)


def _safe(text: str) -> str:
    """Text that matplotlib takes for no formula."""
    return visible(text).replace("$", r"\$")


def _plain(axis: Axis) -> None:
    """Numbers instead of powers of ten, some of them also within a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
