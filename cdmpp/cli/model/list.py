"""``cdmpp model list``: the trained models that are here, with the figures of their cards."""

from __future__ import annotations

import argparse

from cdmpp.cli.output import add_output_arguments, check_output, show


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    add_output_arguments(verb, "csv", "html")


def run(options: argparse.Namespace) -> None:
    """List the models."""
    check_output(options)
    from cdmpp.predict.catalogue import models
    from cdmpp.report.lists import models_report

    show({"": models_report(models())}, options)
