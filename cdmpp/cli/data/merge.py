"""``cdmpp data merge``: put data sets that several hosts measured together, and say where they disagree."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cdmpp.cli.output import add_output_arguments, check_output, show
from cdmpp.data.agreement import TOLERANCE
from cdmpp.errors import UsageError
from cdmpp.platform.limits import check_once, numbers, path, text


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    verb.add_argument("folders", nargs="+", type=path, metavar="FOLDER", help="a data set; one is checked in itself")
    out = "write them there, as one data set; without it they are compared only: status 2 where hosts disagree"
    verb.add_argument("--out", type=path, help=out)
    verb.add_argument(
        "--tolerance",
        type=numbers(0, 1000, "times the noise"),
        default=TOLERANCE,
        help="two measurements of a program agree where they differ by at most so many times the noise of their own "
        f"repeats, which counts as 1 %% at least (default {TOLERANCE:g})",
    )
    verb.add_argument(
        "--keep", type=text, action="append", default=[], metavar="HOST",
        help="where measurements disagree keep those of this host (its name, a part of it, or a folder); may be given "
        "again, the first that has one counts",
    )  # fmt: skip
    verb.add_argument("--drop-conflicts", action="store_true", help="leave out programs of which hosts still disagree")
    add_output_arguments(verb, "csv")


def run(options: argparse.Namespace) -> None:
    """Show what the folders hold together, then write it. ``DataError``, after the report: hosts disagree."""
    check_output(options)
    folders: list[Path] = options.folders
    check_once("FOLDER", [str(folder) for folder in folders])
    check_once("--keep", options.keep)
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        raise UsageError(f"no such folder: {', '.join(missing)}")
    if (options.keep or options.drop_conflicts) and options.out is None:
        raise UsageError("--keep and --drop-conflicts say what is written: give --out FOLDER too")
    from cdmpp.data.union import DataUnion
    from cdmpp.report.merging import merge_report

    union = DataUnion.of(folders, progress=sys.stderr.isatty())
    conflicts, unsettled = union.conflicts(options.tolerance), None
    try:
        united = union.resolved(options.tolerance, options.keep, options.drop_conflicts)
        if options.out is not None:
            united.write(options.out)
    except ValueError as error:
        unsettled = error
    report = merge_report(union, conflicts, folders, options.out if unsettled is None else None)
    show({"": report}, options)
    if unsettled is not None:
        raise unsettled
