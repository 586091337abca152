"""``cdmpp compare``: one network on several devices."""

from __future__ import annotations

import argparse
import sys

from cdmpp.cli.network import add_network_arguments, runtime_options, workload_of
from cdmpp.cli.output import add_output_arguments, check_output, say, show
from cdmpp.errors import UsageError
from cdmpp.platform.limits import path, text


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--devices", type=text, required=True, help="names with commas between them, see `cdmpp devices`")
    add_network_arguments(verb)
    add_output_arguments(verb, "csv", "html")
    verb.add_argument("--plot", type=path, metavar="FILE", help="also write a picture, PNG; needs matplotlib")


def run(options: argparse.Namespace) -> None:
    """Predict on each device, and show the report."""
    runtime = runtime_options(options)
    check_output(options, options.plot)
    if options.plot is not None and options.plot.suffix.lower() != ".png":
        raise UsageError(f"--plot {options.plot}: the picture is a PNG, so its name ends in .png")
    names = [name.strip() for name in options.devices.split(",") if name.strip()]
    import cdmpp
    from cdmpp.report.comparison import comparison_report
    from cdmpp.report.picture import write_picture

    found = cdmpp.compare_devices(workload_of(options), devices=names, progress=sys.stderr.isatty(), **runtime)
    report = comparison_report(found)
    show({"": report}, options)
    if options.plot is not None:
        write_picture(report, options.plot)
        say(f"wrote {options.plot}")
