"""Charts: bars, dots with intervals, and plots of points, as SVG shapes that take the width they are given.

Places across are percentages, so text keeps its size on narrow screens. Numbers at the left lie outside of the drawing;
the style sheet leaves room for them. Colours belong to labels: the page gives each label one colour.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.report.axis import LogAxis, linear_ticks
from cdmpp.report.timeline import TimelineSpan, by_row, merge_short_spans
from cdmpp.units import percent, quantity, shown

Row = Mapping[str, Any]
_PLOT = 320
"""Height of a plot of points in pixels."""
_LANE = 46
"""Height of a row of the timeline."""
_NAME = 32
"""Letters of a row's name that a narrow screen has room for."""


@dataclass(frozen=True)
class Shape:
    """A shape is one element of a drawing."""

    tag: str
    attributes: Mapping[str, Any]
    text: str = ""
    hover: str = ""
    label: str = ""
    """The label that gives the shape its colour; empty if the style sheet does."""


@dataclass(frozen=True)
class Picture:
    """A picture is shapes in a box that is as wide as its place."""

    title: str
    height: int
    shapes: tuple[Shape, ...]
    style: str = ""
    """Class of the style sheet."""
    labels: tuple[str, ...] = ()
    """Labels that a legend explains."""


@dataclass(frozen=True)
class Bar:
    """A bar stands for a number."""

    name: str
    value: float
    share: float | None = None
    label: str = ""


@dataclass(frozen=True)
class Bars:
    """Numbers of one unit are drawn below each other."""

    title: str
    bars: tuple[Bar, ...]
    unit: str = "s"
    note: str = ""

    @property
    def longest(self) -> float:
        """The largest number is this; 1 where there is none."""
        return max((bar.value for bar in self.bars), default=0.0) or 1.0


@dataclass(frozen=True)
class Dot:
    """A dot is a number with its interval."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    measured: float | None = None
    is_hollow: bool = False
    title: str = ""
    """The name in full."""


@dataclass(frozen=True)
class Dots:
    """Numbers with intervals are drawn below each other, on one logarithmic axis."""

    title: str
    dots: tuple[Dot, ...]
    unit: str = "s"
    note: str = ""

    @property
    def pictures(self) -> tuple[tuple[Dot, Picture], ...]:
        """Each number has a line."""
        axis = self._axis
        grid = tuple(_vertical(100 * axis.share(tick), 0, 24, "grid") for tick in axis.ticks())
        return tuple((dot, Picture(dot.title or dot.name, 24, (*grid, *self._line(dot, axis)))) for dot in self.dots)

    @property
    def scale(self) -> Picture:
        """The numbers are written below the lines."""
        ticks = ((100 * self._axis.share(tick), quantity(tick, self.unit, 1)) for tick in self._axis.ticks())
        return Picture("axis", 18, tuple(_text(at, 12, number, "middle") for at, number in ticks))

    @property
    def _axis(self) -> LogAxis:
        numbers = ((dot.value, dot.low, dot.high, dot.measured) for dot in self.dots)
        return LogAxis.around([number for four in numbers for number in four if number], 1.2)

    def _line(self, dot: Dot, axis: LogAxis) -> Iterable[Shape]:
        if dot.low and dot.high:
            left, right = 100 * axis.share(dot.low), 100 * axis.share(dot.high)
            size = {"x": f"{left:.2f}%", "width": f"{right - left:.2f}%", "y": 8, "height": 8, "rx": 4}
            yield Shape("rect", {"class": "band", **size})
        place = {"cx": f"{100 * axis.share(dot.value):.2f}%", "cy": 12, "r": 6}
        hover = f"{dot.title or dot.name}: {shown(dot.value, self.unit)}"
        yield Shape("circle", {"class": "hollow" if dot.is_hollow else "c0", **place}, hover=hover)
        if dot.measured:
            yield _text(100 * axis.share(dot.measured), 17, "×", "middle", "cross")


@dataclass(frozen=True)
class Plot:
    """A plot shows points in a plane."""

    title: str
    picture: Picture
    note: str = ""


Chart = Bars | Dots | Plot


def timeline_picture(spans: Sequence[TimelineSpan]) -> tuple[Picture, int]:
    """Draw a lane for each row; also return how many spans were too short to draw alone."""
    rows, first_s = by_row(spans), min((span.start_s for span in spans), default=0.0)
    end_s = max((span.end_s for span in spans), default=0.0) - first_s or 1.0
    merged, drawn = merge_short_spans(rows, end_s), list[Shape]()
    lanes = {row: lane * _LANE for lane, row in enumerate(rows)}
    for row, lane in lanes.items():
        name = row if len(row) <= _NAME else f"{row[: _NAME - 1]}…"
        busy = sum(span.end_s - span.start_s for span in rows[row])
        drawn.append(Shape("text", {"x": 0, "y": lane + 13}, f"{name}: busy {percent(busy / end_s)}"))
    for one in merged:
        start_s, long_s = one.start_s - first_s, one.end_s - one.start_s
        what = f"{one.name} ({one.kind})" if one.count == 1 else f"{one.count} calls, most of them {one.kind}"
        place = {"x": f"{100 * start_s / end_s:.3f}%", "width": f"{max(100 * long_s / end_s, 0.02):.3f}%"}
        hover = f"{what}: {quantity(long_s, 's')}, from {quantity(start_s, 's')}"
        drawn.append(Shape("rect", {**place, "y": lanes[one.row] + 18, "height": 24}, hover=hover, label=one.kind))
    bottom = len(lanes) * _LANE + 4
    for value in linear_ticks(end_s):
        at = 100 * value / end_s
        drawn.append(_vertical(at, bottom - 6, bottom, "axis"))
        drawn.append(
            _text(at, bottom + 14, quantity(value, "s"), "start" if at < 4 else "end" if at > 94 else "middle")
        )
    style, labels = "fine" if len(merged) > 200 else "", tuple(dict.fromkeys(one.kind for one in merged))
    title = f"Timeline of one run, {quantity(end_s, 's')}"
    return Picture(title, bottom + 20, tuple(drawn), style, labels), sum(one.count for one in merged if one.count > 1)


def roofline(
    rows: Sequence[Row], peak_flops: float | None, bytes_per_s: float | None, narrow_flops: float | None
) -> Picture:
    """Plot operations per byte against operations per second, a circle for each kernel, its area by total time.

    Peaks in 1/s, None where not known. ``narrow_flops``, the peak of narrower numbers, is drawn where a kernel is above
    the other.
    """
    points = [(_number(row, "flops") / _number(row, "io_bytes"), _number(row, "flops_per_s"), row) for row in rows]
    ridge = [peak_flops / bytes_per_s] if peak_flops and bytes_per_s else []
    fastest = max((rate for _, rate, _ in points), default=0.0)
    peaks = [] if peak_flops is None else [(peak_flops, "fp32 peak")]
    if peak_flops and narrow_flops and fastest > peak_flops:
        peaks.append((narrow_flops, "fp16 peak"))
    across = LogAxis.around([x for x, _, _ in points] + ridge)
    up = LogAxis.around([y for _, y, _ in points] + [value for value, _ in peaks])
    drawn = _grid(across, up, "", "FLOP/s", "FLOP per byte", "FLOP/s of one call")
    for value, name in peaks:
        start = max(across.low, value / bytes_per_s) if bytes_per_s else across.low
        drawn.append(_line(across, up, (start, value), (across.high, value), "roof"))
        drawn.append(_text(99.5, _y(up, value) - 6, f"{name} {quantity(value, 'FLOP/s')}", "end", "note"))
    if bytes_per_s:
        top = peaks[-1][0] if peaks else up.high
        first, last = max(across.low, up.low / bytes_per_s), min(across.high, top / bytes_per_s)
        if first < last:
            drawn.append(_line(across, up, (first, first * bytes_per_s), (last, last * bytes_per_s), "roof"))
            drawn.append(_memory_note(across, up, first, last, bytes_per_s))
    drawn += [_circle(across.share(x), up.share(y), row) for x, y, row in points]
    return Picture("Roofline of all kernels", _PLOT + 36, tuple(drawn), "plot", _classes(rows))


def against_measured(rows: Sequence[Row]) -> Picture:
    """Plot predicted against measured latency of one call, of the ``rows`` that were measured."""
    points = [(_number(row, "measured_s"), _number(row, "latency_s"), row) for row in rows]
    both = LogAxis.around([value for x, y, _ in points for value in (x, y)], 1.5)
    drawn, low, high = _grid(both, both, "s", "s", "measured", "predicted"), both.low, both.high
    drawn.append(_line(both, both, (low, low), (high, high), "roof"))
    drawn.append(_line(both, both, (low, low * 1.2), (high / 1.2, high), "roof dashed"))
    drawn.append(_line(both, both, (low * 1.2, low), (high, high / 1.2), "roof dashed"))
    drawn += [_circle(both.share(x), both.share(y), row) for x, y, row in points]
    return Picture("Predicted against measured latency", _PLOT + 36, tuple(drawn), "plot", _classes(rows))


@dataclass(frozen=True)
class Point:
    """A point of a plane stands for a result."""

    x: float
    y: float
    name: str
    """What is shown where a mouse is over it."""


def points(
    title: str,
    series: Mapping[str, Sequence[Point]],
    x: tuple[str, str],
    y: tuple[str, str],
    is_joined: bool | Collection[str],
) -> Picture:
    """Plot series of points on two logarithmic axes.

    Args:
        title: for readers who do not see it.
        series: label -> points; each label has a colour.
        x: name and unit of the numbers from left to right.
        y: the same of those from bottom to top.
        is_joined: whether lines join the points of a series, or the labels of those whose points are lines only.
    """
    every = [point for own in series.values() for point in own]
    across, up = LogAxis.around(point.x for point in every), LogAxis.around(point.y for point in every)
    drawn = _grid(across, up, x[1], y[1], x[0], y[0])
    for label, own in series.items():
        is_line = not isinstance(is_joined, bool) and label in is_joined
        for first, last in zip(own, own[1:], strict=False) if is_line or is_joined is True else ():
            line = _line(across, up, (first.x, first.y), (last.x, last.y), "")
            drawn.append(Shape("line", {k: v for k, v in line.attributes.items() if k != "class"}, label=label))
        for point in () if is_line else own:
            place = {"cx": f"{100 * across.share(point.x):.2f}%", "cy": f"{_y(up, point.y):.1f}", "r": 5}
            drawn.append(Shape("circle", place, hover=point.name, label=label))
    return Picture(title, _PLOT + 36, tuple(drawn), "plot", tuple(series))


def _memory_note(across: LogAxis, up: LogAxis, first: float, last: float, bytes_per_s: float) -> Shape:
    """Left of the middle of the slope, where kernels whose data are not in a cache cannot lie."""
    middle = (first * last) ** 0.5
    x, y = 100 * across.share(middle), _y(up, middle * bytes_per_s)
    side, nudge, down = ("end", -8, 0) if x > 30 else ("start", 10, 14)
    return _text(x, y + down, f"memory {quantity(bytes_per_s, 'B/s')}", side, "note", dx=nudge)


def _grid(across: LogAxis, up: LogAxis, x_unit: str, y_unit: str, x_name: str, y_name: str) -> list[Shape]:
    drawn = [Shape("rect", {"class": "frame", "width": "100%", "height": _PLOT})]
    for value in across.ticks():
        at = 100 * across.share(value)
        drawn.append(_vertical(at, 0, _PLOT, "grid"))
        drawn.append(_text(at, _PLOT + 15, quantity(value, x_unit, 1) if x_unit else f"{value:g}", "middle"))
    for value in up.ticks():
        y = f"{_y(up, value):.1f}"
        drawn.append(Shape("line", {"class": "grid", "x1": 0, "x2": "100%", "y1": y, "y2": y}))
        label = quantity(value, y_unit, 1).replace("FLOP/s", "")
        drawn.append(Shape("text", {"x": -6, "y": f"{_y(up, value) + 4:.1f}", "text-anchor": "end"}, label))
    drawn.append(_text(99.5, _PLOT + 31, f"{x_name} →", "end", "note"))
    drawn.append(Shape("text", {"class": "note", "x": 6, "y": 15}, f"↑ {y_name}"))
    return drawn


def _circle(x: float, y: float, row: Row) -> Shape:
    share, op_class = _number(row, "share"), str(row["op_class"])
    radius = 3.5 + 22 * min(share, 0.5) ** 0.5
    measured = f", measured {quantity(row['measured_s'], 's')}" if row["measured_s"] else ""
    hover = (
        f"{row['kernel']} ({op_class}): {quantity(row['latency_s'], 's')}{measured}, "
        f"{quantity(row['flops_per_s'], 'FLOP/s')}, {percent(share)} of the time"
    )
    place = {"cx": f"{100 * x:.2f}%", "cy": f"{_PLOT * (1 - y):.1f}", "r": f"{radius:.1f}"}
    return Shape("circle", place, hover=hover, label=op_class)


def _text(x: float, y: float, text: str, anchor: str, style: str | None = None, dx: int | None = None) -> Shape:
    """``x`` in percent. Attributes that are None are left out."""
    place = {"class": style, "x": f"{x:.2f}%", "dx": dx, "y": f"{y:.1f}", "text-anchor": anchor}
    return Shape("text", place, text)


def _vertical(at: float, top: float, bottom: float, style: str) -> Shape:
    return Shape("line", {"class": style, "x1": f"{at:.2f}%", "x2": f"{at:.2f}%", "y1": top, "y2": bottom})


def _line(across: LogAxis, up: LogAxis, start: tuple[float, float], end: tuple[float, float], style: str) -> Shape:
    (x1, x2), (y1, y2) = ((across.share(point[0]) for point in (start, end)), (_y(up, p[1]) for p in (start, end)))
    place = {"x1": f"{100 * x1:.2f}%", "x2": f"{100 * x2:.2f}%", "y1": f"{y1:.1f}", "y2": f"{y2:.1f}"}
    return Shape("line", {"class": style, **place})


def _y(up: LogAxis, value: float) -> float:
    return _PLOT * (1 - up.share(value))


def _classes(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row["op_class"] for row in rows))


def _number(row: Row, key: str) -> float:
    value = row[key]
    return float(value) if isinstance(value, int | float) else 0.0
