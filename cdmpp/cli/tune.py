"""``cdmpp tune``: a MetaSchedule database of a network's programs, chosen by prediction or measured here."""

from __future__ import annotations

import argparse
import sys

from cdmpp.cli.network import add_graph_arguments, workload_of
from cdmpp.cli.options import add_device, add_executor
from cdmpp.cli.output import add_output_arguments, check_output, say, show
from cdmpp.network.compiled.rule import SCHEDULES
from cdmpp.platform.limits import Limits, path

_TRIALS = """programs to build and time on this machine, which must be the device: the most promising ones, more of the
kernels that take more of the time (default 0: prediction alone decides)"""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    add_device(verb)
    verb.add_argument(
        "--out", required=True, type=path, metavar="DIR", help="of the database; one that is there goes on"
    )
    verb.add_argument("--trials", type=Limits(0, 10**6, "programs"), default=0, help=" ".join(_TRIALS.split()))
    verb.add_argument(
        "--candidates",
        type=SCHEDULES,
        default=256,
        help="schedules to sample of each kernel (default 256)",
    )
    add_graph_arguments(verb)
    add_executor(verb)
    add_output_arguments(verb, "csv", "html")


def run(options: argparse.Namespace) -> None:
    """Write the database, and show what was found of each kernel."""
    check_output(options)
    import cdmpp
    from cdmpp.report.tuning import tuning_report

    tuned = cdmpp.tune_network(
        workload_of(options),
        device=options.device,
        folder=options.out,
        trials=options.trials,
        candidates=options.candidates,
        progress=sys.stderr.isatty(),
        model=options.model,
    )
    show({"": tuning_report(tuned)}, options)
    say(f"wrote {tuned.folder}: `cdmpp network {options.network} --device {options.device} --schedule "
        f"database:{tuned.folder}` says what the network takes with it")  # fmt: skip
