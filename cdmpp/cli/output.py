"""Output of the verbs of the ``cdmpp`` command: every result is a report, shown in the forms asked for."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli.inputs import is_read
from cdmpp.cli.logs import log
from cdmpp.errors import CdmppError
from cdmpp.platform.files import check_place
from cdmpp.platform.limits import Limits
from cdmpp.platform.limits import path as path_of

if TYPE_CHECKING:
    from cdmpp.report.report import Report

_ROWS = Limits(0, 10**9, "rows")
_FILES = {
    "csv": "also write the rows, as CSV",
    "parquet": "also write the rows, as Parquet, which pandas reads",
    "html": "also write a page with charts and tables, one file",
    "timeline": "also write when everything runs, for ui.perfetto.dev",
}


def add_output_arguments(verb: argparse.ArgumentParser, *files: str, rows: int | None = None) -> None:
    """Declare ``--json``, ``--rows`` where there is a default for it, and the ``files`` that can be written.

    Rows that are written as CSV are written as Parquet too.
    """
    files = tuple(name for one in files for name in (("csv", "parquet") if one == "csv" else (one,)))
    shown = verb.add_argument_group("output")
    shown.add_argument("--json", action="store_true", help="machine-readable, with all rows")
    if rows is not None:
        shown.add_argument("--rows", type=_ROWS, default=rows, help=f"rows of a table; 0 = all (default {rows})")
    for name in files:
        shown.add_argument(f"--{name}", type=path_of, metavar="FILE", help=_FILES[name])


def check_output(options: argparse.Namespace, *others: Path | None, reads: Sequence[str | Path] = ()) -> None:
    """Raise ``CdmppError`` where a file cannot be written, or is read by the same command, before anything is done.

    ``others``: files of the same command that are no report. ``reads``: files that it reads, where options name them in
    other words.
    """
    given = [path for path in (*(getattr(options, name, None) for name in _FILES), *others) if path is not None]
    if len({path.resolve() for path in given}) < len(given):
        raise CdmppError("two outputs have the same file name: the second would replace the first")
    for path in given:
        check_place(path)
        if is_read(path, options, reads):
            raise CdmppError(f"cannot write {path}: the same command reads it; choose another name")
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise CdmppError(f"cannot write {path}: {folder} is no folder that you may write to")


def show(
    reports: Mapping[str, Report], options: argparse.Namespace, rows: str | None = None, others_lead: bool = False
) -> None:
    """Say the warnings, print the reports as text or JSON, and write the files.

    Args:
        reports: key in the JSON -> report; the report of an empty key is the answer that the others stand in.
        options: with what ``add_output_arguments`` declared.
        rows: key of the report whose rows a CSV or Parquet file holds; None: the last one that has some.
        others_lead: in text and HTML the answer stands below the other reports.
    """
    from cdmpp.report.answer import answer_of
    from cdmpp.report.html import write_html
    from cdmpp.report.rows import write_csv, write_parquet
    from cdmpp.report.text import print_report
    from cdmpp.report.timeline_file import write_timeline

    shown = list(reports.values())
    printed = [*shown[1:], *shown[:1]] if others_lead else shown
    for warning in dict.fromkeys(warning for report in shown for warning in report.warnings):
        warn(warning)
    if options.json:
        print_json(answer_of(reports))
    else:
        for place, report in enumerate(printed):
            if place:
                print()
            print_report(report, getattr(options, "rows", 0))
    writers = {"csv": write_csv, "parquet": write_parquet, "html": write_html, "timeline": write_timeline}
    for name, write in writers.items():
        if (path := getattr(options, name, None)) is not None:
            ordered = printed if name == "html" else shown
            write([reports[rows]] if name in ("csv", "parquet") and rows is not None else ordered, path)
            say(f"wrote {path}")


def print_json(value: Any) -> None:
    """Print indented JSON on standard output."""
    print(json.dumps(value, indent=1))


def say(text: str) -> None:
    """Log one line for the user on standard error, next to the output."""
    log.info("%s", text)


def warn(text: str) -> None:
    """Log one line that a reader should know before trusting the output."""
    log.warning("%s", text)
