"""``cdmpp data probe``: what no document states of this machine's core, timed in some seconds."""

from __future__ import annotations

import argparse

from cdmpp.cli.output import print_json, say


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--json", action="store_true", help="machine-readable")


def run(options: argparse.Namespace) -> None:
    """Print lines for a device file, or the JSON."""
    from cdmpp.measure.disturbance import Disturbance
    from cdmpp.measure.probe import probe

    for reason in Disturbance.now().reasons:
        say(f"this machine is busy: {reason}. Keep none of these numbers; probe again when it is quiet")
    found = probe()
    if options.json:
        print_json({"spec": found.spec(), "core": found.core_numbers()})
    else:
        print(found.yaml())
