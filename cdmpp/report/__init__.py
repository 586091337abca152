"""Reports: every result as text, JSON, CSV, a page and a timeline, by the same writers.

A result is what ``predict_network``, ``predict_step``, ``replay_step``, ``optimize_step`` or ``compare`` of ``cdmpp``
returns. Each becomes a ``Report``; a writer knows reports only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdmpp.report.html import Fragment
    from cdmpp.report.report import Report


def report_of(result: Any) -> Report:
    """Make the report on a result; a report stays as it is. ``CdmppError`` for another type."""
    from cdmpp.report.results import report_of as made

    return made(result)


def to_text(result: Any, rows: int = 20) -> str:
    """Return the report as text, with ``rows`` rows of each table, 0: all."""
    from cdmpp.report.text import text_of

    return text_of(report_of(result), rows)


def in_notebook(result: Any) -> Fragment:
    """Show the totals and the first rows, for the last line of a notebook's cell."""
    from cdmpp.report.html import notebook_html

    return notebook_html(report_of(result))


def write_html(result: Any, path: str | Path) -> None:
    """Write one page that needs no network; ``CdmppError`` where that cannot be."""
    from cdmpp.report.html import write_html as write

    write([report_of(result)], Path(path))


def write_csv(result: Any, path: str | Path) -> None:
    """Write the rows of the report's first table; ``CdmppError`` where that cannot be."""
    from cdmpp.report.rows import write_csv as write

    write([report_of(result)], Path(path))


def write_timeline(result: Any, path: str | Path) -> None:
    """Write when everything ran, for ui.perfetto.dev or chrome://tracing; ``CdmppError`` where that cannot be."""
    from cdmpp.report.timeline_file import write_timeline as write

    write([report_of(result)], Path(path))
