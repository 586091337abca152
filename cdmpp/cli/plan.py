"""The options of ``--optimize``, and what is printed of a plan."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cdmpp.cli.output import console, print_table
from cdmpp.errors import CdmppError
from cdmpp.platform.limits import Limits, numbers

if TYPE_CHECKING:
    from cdmpp.plans.search_result import SearchResult

_SEARCHED = ("bucket_mb", "servers", "ring_steps", "no_overlap")


def add_plan_arguments(verb: argparse.ArgumentParser, memory: bool = True) -> None:
    """Declare them; ``memory``: whether the job tells what it holds."""
    plans = verb.add_argument_group("plans")
    plans.add_argument("--optimize", action="store_true", help="search settings under which the step is shorter")
    if memory:
        plans.add_argument(
            "--memory-gb",
            type=numbers(0, 10**6, "GB", above=True),
            help="GB (1e9 bytes) that a device may hold at most",
        )
    many = "batches whose gradients may be added up; more than 1 multiplies the global batch (default 1)"
    plans.add_argument("--accumulate-steps", type=Limits(1, 10**6, "batches"), help=many)


def check_plan(options: argparse.Namespace) -> None:
    """``CdmppError`` for what does not go together."""
    if not options.optimize:
        if given := [name for name in ("memory_gb", "accumulate_steps") if getattr(options, name, None) is not None]:
            raise CdmppError(f"--{given[0].replace('_', '-')} goes with --optimize")
        return
    if getattr(options, "ranks", 1) is None:
        raise CdmppError("--optimize goes with --ranks: say how many devices train")
    if given := [name for name in _SEARCHED if getattr(options, name, None)]:
        raise CdmppError(f"--{given[0].replace('_', '-')} does not go with --optimize, which searches: leave it out")


def print_plan(found: SearchResult) -> None:
    """The plan, what it brings, its settings, and a row a move."""
    from cdmpp.units import percent, quantity

    console().print(f"\n{found.summary()}", markup=False, highlight=False, soft_wrap=True)
    rows = [
        [
            step.move,
            step.cause,
            step.change,
            quantity(step.after.batch_s, "s", 4),
            percent(step.before.batch_s / step.after.batch_s - 1 if step.after.batch_s else 0.0),
            quantity(step.after.peak_bytes, "B"),
            "yes" if step.is_taken else "no",
        ]
        for step in found.steps
    ]
    headings = ("move", "for", "best of it", "a batch", "gain", "memory", "taken")
    print_table("What was tried, one after the other", headings, rows, ("a batch", "gain", "memory"))
