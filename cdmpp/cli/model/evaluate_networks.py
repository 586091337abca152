"""Whole networks, predicted and measured: ``cdmpp model evaluate-networks device=epyc-genoa``."""

from __future__ import annotations

from typing import Any

from cdmpp.cli.hydra_entry import entry
from cdmpp.cli.output import print_table
from cdmpp.evaluation.network_row import summary
from cdmpp.evaluation.network_session import NetworkSettings, fitted, rows_of, run_networks, write_figures


@entry("evaluate_networks")
def main(values: dict[str, Any]) -> None:
    """Measure what is missing, fit what runs beside the kernels, print the tables."""
    settings = NetworkSettings.from_dict(values)
    cells = run_networks(settings)
    sheets = fitted(cells)
    for name, sheet in sheets.items():
        one = sheet.engines
        told = f"{1e6 * (one.call_s or 0):.2f} us a call, {1e6 * (one.run_s or 0):.1f} us a run"
        own = f", {one.resident_bytes / 1024:.0f} KiB of the last cache" if one.resident_bytes else ""
        print(f"{name}: {told}, {one.exposed_share:.2f} of far data shows{own}")
    rows = rows_of(cells, sheets)
    lines = summary(rows)
    print_table(
        "absolute errors, percent, means over networks and batches",
        list(lines[0]) if lines else [],
        [[_text(value) for value in line.values()] for line in lines],
        right=list(lines[0])[4:] if lines else (),
    )
    write_figures(rows, sheets, settings.out)


def _text(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
