"""Charts: a network prediction as SVG that takes the width it is given and the colours of the page around it.

Places across are percentages, so text keeps its size on narrow screens. Numbers at the left lie outside of the drawing;
the style sheet leaves room for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from cdmpp.report.axis import LogAxis, linear_ticks
from cdmpp.report.thinning import Block, blocks_of
from cdmpp.simulate.timeline import Timeline
from cdmpp.units import percent, quantity, visible

Row = Mapping[str, object]
COLOURS = 9
"""In the style sheet, ``c0`` to ``c8``; ``c9`` is grey, for all op classes beyond."""
_PLOT = 320
"""Height of a scatter plot in pixels."""
_LANE = 46
"""Height of a row of the timeline."""
_NAME = 32
"""Letters of a row's name that a narrow screen has room for."""


def text(value: object) -> str:
    """Of any origin, safe between tags and in attributes."""
    return escape(visible(str(value)), quote=True)


def colours(classes: Iterable[str]) -> dict[str, str]:
    """Op class -> class of the style sheet, in their order."""
    return {name: f"c{min(place, COLOURS)}" for place, name in enumerate(classes)}


def legend(shown: Mapping[str, str]) -> str:
    """Names with their colours."""
    items = "".join(f'<li><svg class="key {colour}"><rect/></svg>{text(name)}</li>' for name, colour in shown.items())
    return f'<ul class="legend">{items}</ul>'


def timeline(run: Timeline, colour_of: Mapping[str, str]) -> tuple[str, int]:
    """A row a resource; and how many calls were drawn together with others, too short to tell apart."""
    end_s, blocks = run.makespan_s or 1.0, blocks_of(run)
    names, merged = sorted(run.busy_s), sum(block.calls for block in blocks if block.calls > 1)
    fine = "fine" if len(blocks) > 200 else ""
    drawn = []
    for row, name in enumerate(names):
        whole = str(name)
        shown = whole if len(whole) <= _NAME else f"{whole[: _NAME - 1]}…"
        busy = f"{shown}: busy {percent(run.busy_s[name] / end_s)}"
        drawn.append(f'<text x="0" y="{row * _LANE + 13}">{text(busy)}</text>')
        drawn += [_block(block, row, end_s, colour_of) for block in blocks if block.resource == name]
    bottom = len(names) * _LANE + 4
    for value in linear_ticks(end_s):
        at = 100 * value / end_s
        side = "start" if at < 4 else "end" if at > 94 else "middle"
        drawn.append(f'<line class="axis" x1="{at:.2f}%" x2="{at:.2f}%" y1="{bottom - 6}" y2="{bottom}"/>')
        drawn.append(f'<text x="{at:.2f}%" y="{bottom + 14}" text-anchor="{side}">{quantity(value, "s")}</text>')
    title = f"Timeline of one run, {quantity(end_s, 's')}"
    return _svg("".join(drawn), bottom + 20, title, fine), merged


def _block(block: Block, row: int, end_s: float, colour_of: Mapping[str, str]) -> str:
    left, width = 100 * block.start_s / end_s, 100 * (block.end_s - block.start_s) / end_s
    what = f"{block.name} ({block.label})" if block.calls == 1 else f"{block.calls} calls, most of them {block.label}"
    hover = f"{what}: {quantity(block.end_s - block.start_s, 's')}, from {quantity(block.start_s, 's')}"
    return (
        f'<rect class="{colour_of.get(block.label, "c9")}" x="{left:.3f}%" width="{max(width, 0.02):.3f}%" '
        f'y="{row * _LANE + 18}" height="24"><title>{text(hover)}</title></rect>'
    )


def bars(entries: Sequence[tuple[str, float, str]], whole_s: float) -> str:
    """A bar each for ``(name, seconds, class of the style sheet)``, with its share of ``whole_s``."""
    longest, lines = max((seconds for _, seconds, _ in entries), default=0.0) or 1.0, []
    for name, seconds, colour in entries:
        width, share = 100 * seconds / longest, percent(seconds / whole_s) if whole_s else "-"
        width = max(width, 0.3) if seconds > 1e-12 else 0.0  # visible where it is anything at all
        bar = f'<rect class="{colour}" width="{width:.2f}%" height="14"><title>{text(name)}</title></rect>'
        value = f"{quantity(seconds, 's')} <small>{share}</small>"
        picture = _svg(bar, 14, f"{name}: {quantity(seconds, 's')}")
        lines.append(
            f'<li><span class="name" title="{text(name)}">{text(name)}</span>'
            f'{picture}<span class="value">{value}</span></li>'
        )
    return f'<ol class="bars">{"".join(lines)}</ol>'


@dataclass(frozen=True)
class Dot:
    """A number with its interval, on a line of its own."""

    name: str
    value: float
    low: float | None
    high: float | None
    measured: float | None
    hollow: bool
    shown: str
    hover: str


def dots(entries: Sequence[Dot], unit: str) -> str:
    """Numbers with intervals below each other, on one logarithmic axis."""
    numbers = [number for dot in entries for number in (dot.value, dot.low, dot.high, dot.measured) if number]
    axis, lines = LogAxis.around(numbers, 1.2), []
    grid = "".join(
        f'<line class="grid" x1="{100 * axis.share(tick):.2f}%" x2="{100 * axis.share(tick):.2f}%" y1="0" y2="24"/>'
        for tick in axis.ticks()
    )
    for dot in entries:
        place, drawn = f'"{100 * axis.share(dot.value):.2f}%"', ""
        if dot.low and dot.high:
            left, right = 100 * axis.share(dot.low), 100 * axis.share(dot.high)
            drawn = f'<rect class="band" x="{left:.2f}%" width="{right - left:.2f}%" y="8" height="8" rx="4"/>'
        kind = "hollow" if dot.hollow else "c0"
        drawn += f'<circle class="{kind}" cx={place} cy="12" r="6"><title>{text(dot.hover)}</title></circle>'
        if dot.measured:
            drawn += (
                f'<text class="cross" x="{100 * axis.share(dot.measured):.2f}%" y="17" text-anchor="middle">×</text>'
            )
        lines.append(
            f'<li><span class="name" title="{text(dot.name)}">{text(dot.name)}</span>'
            f'{_svg(grid + drawn, 24, dot.hover)}<span class="value">{dot.shown}</span></li>'
        )
    ticks = "".join(
        f'<text x="{100 * axis.share(tick):.2f}%" y="12" text-anchor="middle">{quantity(tick, unit, 1)}</text>'
        for tick in axis.ticks()
    )
    lines.append(f'<li><span class="name"></span>{_svg(ticks, 18, "axis")}<span class="value"></span></li>')
    return f'<ol class="bars dots">{"".join(lines)}</ol>'


def roofline(
    rows: Sequence[Row],
    colour_of: Mapping[str, str],
    peak_flops: float | None,
    bytes_per_s: float | None,
    narrow_flops: float | None,
) -> str:
    """Operations per byte against operations a second, a circle a kernel, its area by total time.

    Peaks in 1/s, None where not known. ``narrow_flops``, of narrower numbers, is drawn where a kernel is above the
    other.
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
        label, y = f"{name} {quantity(value, 'FLOP/s')}", _y(up, value) - 6
        drawn.append(f'<text class="note" x="99.5%" y="{y:.1f}" text-anchor="end">{label}</text>')
    if bytes_per_s:
        top = peaks[-1][0] if peaks else up.high
        first = max(across.low, up.low / bytes_per_s)
        last = min(across.high, top / bytes_per_s)
        if first < last:
            drawn.append(_line(across, up, (first, first * bytes_per_s), (last, last * bytes_per_s), "roof"))
            drawn.append(_memory_note(across, up, first, last, bytes_per_s))
    drawn += [_circle(across.share(x), up.share(y), row, colour_of) for x, y, row in points]
    return _svg("".join(drawn), _PLOT + 36, "Roofline of all kernels", "plot")


def _memory_note(across: LogAxis, up: LogAxis, first: float, last: float, bytes_per_s: float) -> str:
    """Left of the middle of the slope, where kernels whose data are not in a cache cannot lie."""
    middle = (first * last) ** 0.5
    x, y = 100 * across.share(middle), _y(up, middle * bytes_per_s)
    side, nudge = ("end", "-8") if x > 30 else ("start", "10")
    down = 0 if side == "end" else 14
    label = f"memory {quantity(bytes_per_s, 'B/s')}"
    return f'<text class="note" x="{x:.2f}%" dx="{nudge}" y="{y + down:.1f}" text-anchor="{side}">{label}</text>'


def against_measured(rows: Sequence[Row], colour_of: Mapping[str, str]) -> str:
    """Predicted against measured latency of a call, of the ``rows`` that were measured."""
    points = [(_number(row, "measured_s"), _number(row, "latency_s"), row) for row in rows]
    both = LogAxis.around([value for x, y, _ in points for value in (x, y)], 1.5)
    drawn = _grid(both, both, "s", "s", "measured", "predicted")
    low, high = both.low, both.high
    drawn.append(_line(both, both, (low, low), (high, high), "roof"))
    drawn.append(_line(both, both, (low, low * 1.2), (high / 1.2, high), "roof dashed"))
    drawn.append(_line(both, both, (low * 1.2, low), (high, high / 1.2), "roof dashed"))
    drawn += [_circle(both.share(x), both.share(y), row, colour_of) for x, y, row in points]
    return _svg("".join(drawn), _PLOT + 36, "Predicted against measured latency", "plot")


def _grid(across: LogAxis, up: LogAxis, x_unit: str, y_unit: str, x_name: str, y_name: str) -> list[str]:
    drawn = [f'<rect class="frame" width="100%" height="{_PLOT}"/>']
    for value in across.ticks():
        at = 100 * across.share(value)
        drawn.append(f'<line class="grid" x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="{_PLOT}"/>')
        label = quantity(value, x_unit, 1) if x_unit else f"{value:g}"
        drawn.append(f'<text x="{at:.2f}%" y="{_PLOT + 15}" text-anchor="middle">{label}</text>')
    for value in up.ticks():
        y = _y(up, value)
        drawn.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        label = quantity(value, y_unit, 1).replace("FLOP/s", "")
        drawn.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    drawn.append(f'<text class="note" x="99.5%" y="{_PLOT + 31}" text-anchor="end">{x_name} →</text>')
    drawn.append(f'<text class="note" x="6" y="15">↑ {y_name}</text>')
    return drawn


def _circle(x: float, y: float, row: Row, colour_of: Mapping[str, str]) -> str:
    share, op_class = _number(row, "share"), str(row["op_class"])
    radius = 3.5 + 22 * min(share, 0.5) ** 0.5
    measured = f", measured {quantity(_number(row, 'measured_s'), 's')}" if row["measured_s"] else ""
    hover = (
        f"{row['kernel']} ({op_class}): {quantity(_number(row, 'latency_s'), 's')}{measured}, "
        f"{quantity(_number(row, 'flops_per_s'), 'FLOP/s')}, {percent(share)} of the time"
    )
    place = f'cx="{100 * x:.2f}%" cy="{_PLOT * (1 - y):.1f}" r="{radius:.1f}"'
    return f'<circle class="{colour_of.get(op_class, "c9")}" {place}><title>{text(hover)}</title></circle>'


def _line(across: LogAxis, up: LogAxis, start: tuple[float, float], end: tuple[float, float], kind: str) -> str:
    (x1, x2), (y1, y2) = ((across.share(point[0]) for point in (start, end)), (_y(up, p[1]) for p in (start, end)))
    return f'<line class="{kind}" x1="{100 * x1:.2f}%" x2="{100 * x2:.2f}%" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _y(up: LogAxis, value: float) -> float:
    return _PLOT * (1 - up.share(value))


def _number(row: Row, key: str) -> float:
    value = row[key]
    return float(value) if isinstance(value, int | float) else 0.0


def _svg(inside: str, height: int, title: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<svg{named} role="img" aria-label="{text(title)}" width="100%" height="{height}">{inside}</svg>'
