"""``cdmpp tune``: a MetaSchedule database of a network's programs, chosen by prediction or measured here."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from cdmpp.cli.network import add_graph_arguments, network_options
from cdmpp.cli.output import print_json, print_table, say
from cdmpp.platform.limits import Limits, path, text

if TYPE_CHECKING:
    from cdmpp.tuning.offline import TunedNetwork

_TRIALS = """programs to build and time on this machine, which must be the device: the most promising ones, more of the
kernels that take more of the time (default 0: prediction alone decides)"""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--device", type=text, required=True, help="name of a device, see `cdmpp devices`")
    verb.add_argument(
        "--out", required=True, type=path, metavar="DIR", help="of the database; one that is there goes on"
    )
    verb.add_argument("--trials", type=Limits(0, 10**6, "programs"), default=0, help=" ".join(_TRIALS.split()))
    verb.add_argument(
        "--candidates",
        type=Limits(1, 10**6, "schedules"),
        default=256,
        help="schedules to sample of each kernel (default 256)",
    )
    add_graph_arguments(verb)
    verb.add_argument("--json", action="store_true", help="machine-readable, all kernels")


def run(options: argparse.Namespace) -> None:
    """Write the database, and print what was found of each kernel."""
    asked = network_options(options)
    import cdmpp

    tuned = cdmpp.tune(
        options.network,
        device=options.device,
        folder=options.out,
        trials=options.trials,
        candidates=options.candidates,
        progress=sys.stderr.isatty(),
        **asked,
    )
    print_json(tuned.to_dict()) if options.json else _print(tuned)
    say(f"wrote {tuned.folder}: `cdmpp network {options.network} --device {options.device} --schedule "
        f"database:{tuned.folder}` says what the network takes with it")  # fmt: skip


def _print(tuned: TunedNetwork) -> None:
    from rich.markup import escape

    from cdmpp.units import quantity

    def time_of(seconds: float | None) -> str:
        return "" if seconds is None else quantity(seconds, "s")

    lines = [
        [
            escape(kernel.op_name),
            str(kernel.calls),
            time_of(kernel.predicted_s),
            str(kernel.trials),
            time_of(kernel.measured_s),
        ]
        for kernel in tuned.kernels
    ]
    titles = ["kernel", "calls", "best predicted", "trials", "best measured"]
    print_table(f"{escape(tuned.network)} on {tuned.device}", titles, lines, right=titles[1:])
