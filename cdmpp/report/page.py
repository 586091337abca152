"""Page: a prediction as one HTML file that asks nothing of the net, and as a few lines for a notebook."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp import devices
from cdmpp.errors import UnknownDeviceError
from cdmpp.platform.files import write_atomic
from cdmpp.report import charts
from cdmpp.report.charts import text
from cdmpp.report.report import COLUMNS, TEXTS, Row, by_class, headings, shown_level, table, work_s
from cdmpp.report.summary import (
    latency_text,
    measured_text,
    memory_text,
    origin_text,
    parts,
    throughput_text,
)
from cdmpp.units import quantity
from cdmpp.version import __version__

if TYPE_CHECKING:
    from cdmpp.network.prediction import NetworkPrediction

MOST = 1000
"""Kernels in the table and the plots of the page, those with the most total time."""
_TOP = 12
_READ = """
<p><b>Latency</b> is one run of the network, all calls replayed in the order in which the network needs them. An
interval of 80 % is one in which the true time should lie in 8 of 10 cases. <b>One call</b> is a kernel alone,
its data in cache; <b>cold extra</b> is what a call takes longer because other kernels have used the cache
meanwhile; <b>total</b> is both, times the calls. <b>Overhead</b> is launches and the framework.</p>
<p><b>Work</b> counts arithmetic operations of one call (a multiply-add is two), <b>data</b> the bytes of its
inputs, weights and outputs, each once. <b>Bound by</b> says what the device's published peaks make the limit.
In the roofline a kernel far below the lines leaves much of the device unused: a better schedule may help. One
above the slope found its data in a cache, or fuses work that is counted but not done.</p>
<p>All numbers are predictions unless the word measured stands beside them. Hover over a mark for its name.</p>
"""


def save_html(prediction: NetworkPrediction, path: str | Path) -> Path:
    """Write ``html_page``, atomically."""
    page, path = html_page(prediction), Path(path)
    write_atomic(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    return path


def html_page(prediction: NetworkPrediction) -> str:
    """The whole report. Names are escaped; the page loads nothing, and runs no script but its own."""
    rows, colour_of = table(prediction), charts.colours(by_class(prediction))
    sections = [
        _head(prediction),
        _timeline(prediction, colour_of),
        _bars(prediction, rows, colour_of),
        f'<div class="pair">{_roofline(prediction, rows[:MOST], colour_of)}{_measured(rows[:MOST], colour_of)}</div>',
        _table(prediction, rows),
        f"<h2>How to read this</h2>{_READ}",
    ]
    return page_of(f"{prediction.network} on {prediction.device}", "".join(sections))


def page_of(title: str, inside: str) -> str:
    """A complete document with the style and the script of this package."""
    style, script = (Path(__file__).with_name(f"page.{end}").read_text(encoding="utf-8") for end in ("css", "js"))
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{style}</style></head>\n"
        f"<body><main>{inside}</main><script>{script}</script></body></html>\n"
    )


def notebook_html(prediction: NetworkPrediction, rows: int = 8) -> str:
    """Headline, warnings and the kernels with the most total time; no script, no style but its own."""
    found = table(prediction)
    names = [name for name in headings(found) if name in ("kernel", "op class", "calls", "total", "share", "one call")]
    head = "".join(f"<th>{text(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{text(COLUMNS[name][1](row))}</td>' for name in names)}</tr>" for row in found[:rows]
    )
    rest = len(found) - rows
    more = f"<p>and {rest} more kernels: <code>.table()</code> or <code>.save_html(path)</code></p>" if rest > 0 else ""
    made = ", ".join(f"{name} {quantity(seconds, 's')}" for name, seconds in parts(prediction).items())
    return (
        f"<div><b>{text(prediction.network)}</b> on <b>{text(prediction.device)}</b>, batch {prediction.batch}, "
        f"model {text(prediction.model)}, schedule {text(prediction.schedule)}"
        f'<div style="font-size:150%">{latency_text(prediction)}</div>'
        f"<div>{throughput_text(prediction)}; {made}</div>{warnings_box(prediction.warnings)}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}</div>"
    )


def warnings_box(warnings: Sequence[str]) -> str:
    """What to know before trusting the number; empty without."""
    items = "".join(f"<li>{text(warning)}</li>" for warning in warnings)
    return f'<div class="warnings"><b>Before you trust this</b><ul>{items}</ul></div>' if items else ""


def cards(entries: Mapping[str, tuple[str, str]]) -> str:
    """Boxes: what it is -> its number and a line below."""
    boxes = (f"<div>{name}<b>{text(big)}</b><span>{text(small)}</span></div>" for name, (big, small) in entries.items())
    return f'<div class="cards">{"".join(boxes)}</div>'


def _head(prediction: NetworkPrediction) -> str:
    calls = sum(kernel.count for kernel in prediction.kernels)
    once = f"{prediction.folded} more run once, when it is deployed" if prediction.folded else "in one run"
    shown = {
        "Latency": _two(latency_text(prediction)),
        "Throughput": _two(throughput_text(prediction)),
        "Kernels": (f"{calls} calls", f"of {len(prediction.kernels)} kernels; {once}"),
        "Memory": _two(memory_text(prediction)),
    }
    if prediction.measured_s:
        shown["Measured"] = _two(measured_text(prediction))
    about = f"Batch {prediction.batch}, model {prediction.model}, schedule {prediction.schedule}. cdmpp {__version__}."
    source = f" Interval: {origin_text(prediction)}."
    return (
        f"<h1>{text(prediction.network)} on {text(prediction.device)}</h1>"
        f'<p class="soft">{text(about + source)}</p>{cards(shown)}' + warnings_box(prediction.warnings)
    )


def _two(told: str) -> tuple[str, str]:
    """``1.58 ms (80 %: ...)`` as a number and the line below."""
    big, _, small = told.partition(" (")
    return big, small.removesuffix(")")


def _timeline(prediction: NetworkPrediction, colour_of: Mapping[str, str]) -> str:
    drawn, merged = charts.timeline(prediction.timeline, colour_of)
    note = f" {merged} short calls are drawn together with those beside them." if merged else ""
    more = (
        f'<p class="soft">One row for each part of the device that runs kernels.{note} A trace file can be zoomed.</p>'
    )
    return f"<h2>Timeline</h2>{more}{drawn}{charts.legend(colour_of)}"


def _bars(prediction: NetworkPrediction, rows: Sequence[Row], colour_of: Mapping[str, str]) -> str:
    whole = work_s(prediction)
    classes = [(name, seconds, colour_of[name]) for name, seconds in by_class(prediction).items()]
    split = [(name, seconds, "c9") for name, seconds in parts(prediction).items() if seconds >= 0]
    top = [(str(row["kernel"]), float(row["total_s"]), colour_of[row["op_class"]]) for row in rows[:_TOP]]
    left = f"<h3>By part</h3>{charts.bars(split, whole)}<h3>By op class</h3>{charts.bars(classes[:_TOP], whole)}"
    count = f"The {_TOP} kernels with most time" if len(rows) > _TOP else "By kernel"
    right = f"<h3>{count}</h3>{charts.bars(top, whole)}"
    return f'<h2>Where the time goes</h2><div class="pair"><div>{left}</div><div>{right}</div></div>'


def _roofline(prediction: NetworkPrediction, rows: Sequence[Row], colour_of: Mapping[str, str]) -> str:
    drawn = [row for row in rows if row["flops"] > 0 and row["io_bytes"] > 0 and row["flops_per_s"]]
    if not drawn:
        return ""
    peak, bandwidth, narrow = peaks(prediction.device)
    left_out = len(rows) - len(drawn)
    notes = [f"{left_out} kernels without arithmetic are not shown."] if left_out else []
    if peak is None or bandwidth is None:
        missing = [name for name, value in (("peak", peak), ("bandwidth", bandwidth)) if value is None]
        notes.append(f"The description of {prediction.device} has no {' and no '.join(missing)}.")
    note = "A circle a kernel, its area by total time. " + " ".join(notes)
    picture = charts.roofline(drawn, colour_of, peak, bandwidth, narrow) + charts.legend(_of(drawn, colour_of))
    return f'<section><h2>Roofline</h2><p class="soft">{text(note)}</p>{picture}</section>'


def peaks(device: str) -> tuple[float | None, float | None, float | None]:
    """fp32 FLOP/s, memory B/s (of CPUs that of a core) and the fastest fp16 FLOP/s; None where none is described."""
    try:
        described = devices.get(device)
    except UnknownDeviceError:
        return None, None, None
    spec = described.spec
    gbps = spec["core_gbps"] if described.kind == "cpu" else spec["bandwidth_gbps"]
    narrow = max((rate for rate in (spec["fp16_tflops"], spec["fp16_matrix_tflops"]) if rate), default=None)
    tflops = spec["fp32_tflops"]
    return tflops and 1e12 * tflops, gbps and 1e9 * gbps, narrow and 1e12 * narrow


def _measured(rows: Sequence[Row], colour_of: Mapping[str, str]) -> str:
    timed = [row for row in rows if row["measured_s"] and row["latency_s"] > 0]
    if not timed:
        return ""
    error = sum(abs(row["latency_s"] / row["measured_s"] - 1) for row in timed) / len(timed)
    note = f"{len(timed)} kernels, one call each; the mean error is {100 * error:.1f} %. Dashed: 20 % off."
    picture = charts.against_measured(timed, colour_of) + charts.legend(_of(timed, colour_of))
    return f'<section><h2>Predicted and measured</h2><p class="soft">{note}</p>{picture}</section>'


def _of(rows: Sequence[Row], colour_of: Mapping[str, str]) -> dict[str, str]:
    present = {row["op_class"] for row in rows}
    return {name: colour for name, colour in colour_of.items() if name in present}


def _table(prediction: NetworkPrediction, rows: Sequence[Row]) -> str:
    shown, level = list(rows[:MOST]), shown_level(prediction)
    names = headings(shown)
    note = f"The first {MOST} of {len(rows)}; a CSV file has all. " if len(rows) > MOST else ""
    head = "".join(_heading(name, level) for name in names)
    body = "".join(f"<tr>{''.join(_cell(name, row) for name in names)}</tr>" for row in shown)
    grid = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    return f'<h2>All kernels</h2><p class="soft">{note}Press a heading to sort.</p>{grid}'


def _heading(name: str, level: float | None) -> str:
    words, sort = ' class="words"' if name in TEXTS else "", ' aria-sort="descending"' if name == "total" else ""
    title = f"{100 * level:g} % {name}" if name == "interval" and level is not None else name
    return f'<th{words}{sort} scope="col"><button type="button">{title}</button></th>'


def _cell(name: str, row: Row) -> str:
    key, write = COLUMNS[name]
    shown = text(write(row))
    if name in TEXTS:
        hover = f' title="{shown}"' if name == "kernel" else ""
        return f'<td class="words{" name" if name == "kernel" else ""}"{hover}>{shown}</td>'
    value = row[key]
    return f'<td data-v="{"" if value is None else format(value, ".6g")}">{shown}</td>'
