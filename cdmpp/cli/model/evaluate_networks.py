"""Whole networks, predicted and measured: ``cdmpp model evaluate-networks device=epyc-genoa``."""

from __future__ import annotations

from typing import Any

from cdmpp.cli.hydra_entry import entry
from cdmpp.evaluation.network_row import summary
from cdmpp.evaluation.network_session import NetworkSettings, fitted, rows_of, run_networks, write_figures
from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.report.text import print_report
from cdmpp.units import PERCENT, SHARE


@entry("evaluate_networks")
def main(values: dict[str, Any]) -> None:
    """Measure what is missing, fit what runs beside the kernels, print the tables."""
    settings = NetworkSettings.from_dict(values)
    cells = run_networks(settings)
    sheets = fitted(cells)
    rows = rows_of(cells, sheets)
    lines = summary(rows)
    texts = list(lines[0])[:4] if lines else []
    columns = (
        *(Column(key, key, kind="text") for key in texts),
        *(Column(key, key, PERCENT, digits=2) for key in (list(lines[0])[4:] if lines else ())),
    )
    title = "Absolute errors in percent, means over networks and batches"
    totals = tuple(_launches(name, sheet) for name, sheet in sheets.items())
    print_report(Report("Networks, predicted and measured", lines, totals, (Table(title, columns, lines),)))
    write_figures(rows, sheets, settings.out)


def _launches(name: str, sheet: Any) -> Total:
    """The time that passes next to the kernels, as it was fitted for one device."""
    one = sheet.launch_overheads
    parts = [
        Total("a call", one.call_s or 0.0, "s"),
        Total("a run", one.run_s or 0.0, "s"),
        Total("far data that shows", one.exposed_share, SHARE),
    ]
    if one.resident_bytes:
        parts.append(Total("of the last cache", one.resident_bytes, "B"))
    return Total(name, parts=tuple(parts))
