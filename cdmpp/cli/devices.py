"""``cdmpp devices``: every described device, with the data and the models that are here for it."""

from __future__ import annotations

import argparse

from cdmpp.cli.output import add_output_arguments, check_output, show


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    add_output_arguments(verb, "csv", "html")


def run(options: argparse.Namespace) -> None:
    """List the devices."""
    check_output(options)
    from cdmpp.data.summary import known_paths, summarise
    from cdmpp.predict.catalogue import models
    from cdmpp.report.lists import devices_report

    show({"": devices_report(summarise(known_paths()), [entry for entry in models() if entry.usable])}, options)
