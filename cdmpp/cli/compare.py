"""``cdmpp compare``: one network on several devices, as a table, JSON, a page or a picture."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.cli.network import add_network_arguments, check_files, network_options
from cdmpp.cli.output import print_json, print_table, say
from cdmpp.errors import CdmppError

if TYPE_CHECKING:
    from cdmpp.network.comparison import Comparison


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--devices", required=True, help="names with commas between them, see `cdmpp devices`")
    add_network_arguments(verb)
    verb.add_argument("--json", action="store_true", help="machine-readable")
    verb.add_argument("--html", type=Path, metavar="FILE", help="also write a page with charts, one file")
    verb.add_argument("--plot", type=Path, metavar="FILE", help="also write a picture, PNG; needs matplotlib")


def run(options: argparse.Namespace) -> None:
    """Print the table or the JSON, write the files, and say the warnings and what has no answer."""
    asked, files = network_options(options), (options.html, options.plot)
    check_files(files)
    if options.plot is not None and options.plot.suffix.lower() != ".png":
        raise CdmppError(f"--plot {options.plot}: the picture is a PNG, so its name ends in .png")
    names = [name.strip() for name in options.devices.split(",") if name.strip()]
    import cdmpp

    found = cdmpp.compare(options.network, devices=names, progress=sys.stderr.isatty(), **asked)
    for answer in found.answers:
        told = [answer.reason] if answer.prediction is None else answer.prediction.warnings
        for warning in told:
            say(f"{answer.device}: {warning}")
    if options.json:
        print_json(found.to_dict())
    else:
        _print(found)
    for path, save in zip(files, (found.save_html, found.save_plot), strict=True):
        if path is not None:
            save(path)
            say(f"wrote {path}")


def _print(found: Comparison) -> None:
    from rich.markup import escape

    from cdmpp.report.comparison_page import COLUMNS, TEXTS, headings
    from cdmpp.units import visible

    rows = found.table()
    answered = [row for row in rows if row["latency_s"]]
    names = headings(answered)
    cells = [[escape(visible(COLUMNS[name][1](row))) for name in names] for row in answered]
    level = next((row["interval_level"] for row in answered if row["interval_level"]), None)
    titles = [f"{100 * level:g} % interval" if name == "interval" and level else name for name in names]
    right = [title for name, title in zip(names, titles, strict=True) if name not in TEXTS]
    without = [row["device"] for row in rows if row["reason"]]
    cells += [[escape(visible(name)), "no answer", *[""] * (len(names) - 2)] for name in without]
    batches = ", ".join(str(batch) for batch in sorted({row["batch"] for row in answered}))
    print_table(escape(visible(f"{found.network}, batch {batches}")), titles, cells, right=right)
