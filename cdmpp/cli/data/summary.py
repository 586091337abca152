"""``cdmpp data summary``: what data is here, in numbers and pictures."""

from __future__ import annotations

import argparse
import sys

from cdmpp.cli.output import add_output_arguments, check_output, say, show
from cdmpp.errors import UsageError
from cdmpp.platform.limits import check_once, path


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--path", type=path, action="append", default=[], help="a further folder to look in")
    verb.add_argument("--plots", type=path, metavar="DIR", help="save pictures of the data sets there")
    add_output_arguments(verb, "csv", "html")


def run(options: argparse.Namespace) -> None:
    """Show what is here."""
    check_output(options)
    check_once("--path", [str(folder) for folder in options.path])
    if missing := [str(folder) for folder in options.path if not folder.is_dir()]:
        raise UsageError(f"no such folder: {', '.join(missing)}")
    from cdmpp.data.summary import details, known_paths, summarise
    from cdmpp.report.lists import data_report

    paths = known_paths(options.path)
    entries = sorted(summarise(paths), key=lambda entry: (entry.device, str(entry.folder)))
    readable = details(entries)
    if options.plots is not None:
        from cdmpp.data.plots import save_data_plots

        if not readable:
            raise UsageError("there is no data set to draw; give its folder with --path")
        for picture in save_data_plots(options.plots, [statistics for _, statistics in readable]):
            print(picture, file=sys.stderr)
    if not entries and not options.json:
        say(
            f"no data is here; looked in {', '.join(map(str, paths)) or 'datasets'} and in $CDMPP_DATA. "
            "`cdmpp model train --device a100` downloads some, `cdmpp data measure` and `cdmpp data import` make some"
        )
    else:
        show({"": data_report(entries, readable, paths)}, options)
