"""HTML: reports as one page that loads nothing from anywhere, and as a few lines for a notebook.

Jinja2 escapes all that comes from outside; control characters become visible before that.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cdmpp.platform.files import write_text
from cdmpp.report.charts import Bars, Plot, timeline_picture
from cdmpp.report.report import Column, Report
from cdmpp.report.timeline import seconds_by_kind
from cdmpp.units import quantity, shown, visible
from cdmpp.version import __version__

MOST = 1000
"""Rows of a table on the page; a CSV file has all."""
_NOTEBOOK = 8
"""Rows that a notebook shows."""
_COLOURS = 9
"""Colours of labels in the style sheet, ``c0`` to ``c8``; ``c9`` is grey, for all labels beyond."""
_TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Fragment:
    """A notebook shows this piece of HTML."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


def write_html(reports: Sequence[Report], path: Path) -> None:
    """Write ``html_page``, whole or not at all; ``DataError`` where that cannot be."""
    write_text(path, html_page(reports))


def html_page(reports: Sequence[Report]) -> str:
    """Make a page with a section for each report. It runs no script but its own, which sorts tables."""
    script = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _template("page.html").render(
        reports=reports, script=script, allowed=allowed, version=__version__, most=MOST
    )


def notebook_html(report: Report) -> Fragment:
    """Show the totals, the warnings and the first rows: no script, no style but its own."""
    return Fragment(_template("notebook.html").render(report=report, most=_NOTEBOOK))


def colours_of(report: Report) -> dict[str, str]:
    """Map label to class of the style sheet, by the time that each takes."""
    labels = dict.fromkeys(seconds_by_kind(report.timeline or ()))
    for chart in report.charts:
        if isinstance(chart, Bars):
            labels |= dict.fromkeys(bar.label for bar in chart.bars if bar.label)
        elif isinstance(chart, Plot):
            labels |= dict.fromkeys(chart.picture.labels)
    return {label: f"c{min(place, _COLOURS)}" for place, label in enumerate(labels)}


def meanings(report: Report) -> dict[str, str]:
    """Explain each term, for all headings that say what it means."""
    columns = (column for table in report.tables for column in table.shown_columns)
    return {**report.notes, **{column.name: column.meaning for column in columns if column.meaning}}


@cache
def _template(name: str) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, finalize=_visible,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"quantity": quantity, "shown": shown, "sort_key": _sort_key}
    environment.globals |= {"colours_of": colours_of, "meanings": meanings, "timeline_picture": timeline_picture}
    return environment.get_template(name)


def _visible(value: Any) -> Any:
    """Texts without control characters; markup, which only templates make, as it is."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _sort_key(column: Column, row: Mapping[str, Any]) -> str:
    """A number that a column is sorted by; empty where there is none."""
    value = row.get(column.key)
    return format(value, ".6g") if isinstance(value, int | float) else ""
