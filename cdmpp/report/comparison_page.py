"""The page of a comparison: charts of latency and throughput, and the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.report import charts
from cdmpp.report.charts import text
from cdmpp.report.page import page_of, warnings_box
from cdmpp.report.summary import rate
from cdmpp.units import quantity, span

if TYPE_CHECKING:
    from cdmpp.network.comparison import Comparison

BY_DATASHEET = "datasheet alone"
Row = Mapping[str, Any]
COLUMNS: dict[str, tuple[str, Callable[[Row], str]]] = {
    "device": ("device", lambda row: row["device"]),
    "latency": ("latency_s", lambda row: quantity(row["latency_s"], "s", 4)),
    "interval": ("interval_low_s", lambda row: _span(row)),
    "throughput": ("throughput_per_s", lambda row: rate(row["batch"], row["latency_s"])),
    "memory": ("peak_bytes", lambda row: quantity(row["peak_bytes"], "B")),
    "measured": ("measured_s", lambda row: quantity(row["measured_s"], "s", 4)),
    "model": ("model", lambda row: row["model"] or "-"),
    "known by": ("by_datasheet", lambda row: BY_DATASHEET if row["by_datasheet"] else "its programs"),
}
"""Heading of a shown table -> key in ``Comparison.table`` and text of a row."""
TEXTS = ("device", "model", "known by")
_READ = """
<p>A dot is the prediction, the bar behind it the interval, a cross what was measured. A hollow dot: the model
learned from no program of that device and goes by its datasheet alone, so expect larger errors than the
interval of another device suggests. Axes are logarithmic.</p>
"""


def headings(rows: Sequence[Row]) -> list[str]:
    """Those of ``COLUMNS`` that say something of ``rows``."""
    optional = ("interval_low_s", "measured_s")
    return [name for name, (key, _) in COLUMNS.items() if key not in optional or any(row[key] for row in rows)]


def html_page(found: Comparison) -> str:
    """The whole page. Names are escaped; it loads nothing, and runs no script but its own."""
    rows = [row for row in found.table() if row["latency_s"]]
    batches = ", ".join(str(batch) for batch in sorted({row["batch"] for row in rows}))
    latency = _dots(rows, ("latency_s", "interval_low_s", "interval_high_s", "measured_s"), "s")
    rates = _dots(rows, ("throughput_per_s", "throughput_low_per_s", "throughput_high_per_s", ""), "/s")
    pictures = f"<section><h2>Latency</h2>{latency}</section><section><h2>Throughput</h2>{rates}</section>"
    warnings = [f"{row['device']}: {warning}" for row in found.table() for warning in row["warnings"]]
    count = f"{len(rows)} of {len(found.answers)} devices"
    return page_of(
        f"{found.network} on {count}",
        f'<h1>{text(found.network)}</h1><p class="soft">Batch {batches}, {count} have an answer</p>'
        f'<div class="pair">{pictures}</div><h2>All devices</h2><div class="wide">{table_html(found)}</div>'
        f"{warnings_box(warnings)}<h2>How to read this</h2>{_READ}",
    )


def table_html(found: Comparison) -> str:
    """The table alone, for pages and notebooks."""
    rows = found.table()
    names = headings(rows)
    head = "".join(_heading(name, rows) for name in names)
    body = "".join(f"<tr>{_cells(row, names)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _heading(name: str, rows: Sequence[Row]) -> str:
    level = next((row["interval_level"] for row in rows if row["interval_level"]), None)
    title = f"{100 * level:g} % {name}" if level and name == "interval" else name
    return f'<th scope="col"{_side(name)}>{title}</th>'


def _cells(row: Row, names: Sequence[str]) -> str:
    if row["reason"]:
        reason = f'<td class="reason" colspan="{len(names) - 1}">{text(row["reason"])}</td>'
        return f'<td class="words">{text(row["device"])}</td>{reason}'
    return "".join(f"<td{_side(name)}>{text(COLUMNS[name][1](row))}</td>" for name in names)


def _side(name: str) -> str:
    return ' class="words"' if name in TEXTS else ""


def _dots(rows: Sequence[Row], keys: tuple[str, str, str, str], unit: str) -> str:
    """A line a device; ``keys`` of the number, both ends of its interval, and what was measured."""
    lines = []
    for row in rows:
        value, low, high, measured = (row.get(key) for key in keys)
        assert value is not None  # rows with an answer alone
        shown = quantity(value, unit) if unit == "s" else rate(row["batch"], row["latency_s"])
        hover = f"{_title(row['device'])}: {shown}"
        lines.append(charts.Dot(row["device"], value, low, high, measured, row["by_datasheet"], shown, hover))
    return charts.dots(lines, unit)


def _title(device: str) -> str:
    """What the device is called in full, where it is described."""
    try:
        return devices.get(device).title
    except CdmppError:
        return device


def _span(row: Row) -> str:
    return "-" if row["interval_low_s"] is None else span(row["interval_low_s"], row["interval_high_s"], "s")
