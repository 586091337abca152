"""``cdmpp plan``: search the settings under which a training step on several devices is shorter, or fits."""

from __future__ import annotations

import argparse

from cdmpp.cli import step
from cdmpp.cli.plan_options import add_memory_argument, add_search_arguments


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of a step; what they leave open is searched."""
    step.add_arguments(verb)
    add_search_arguments(verb)
    add_memory_argument(verb)
    verb.set_defaults(optimize=True)


def run(options: argparse.Namespace) -> None:
    """Show the step, its replay with the settings that are given, and what the search found."""
    step.run(options)
