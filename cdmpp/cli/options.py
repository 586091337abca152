"""Options that several verbs have, each declared once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cdmpp.errors import UsageError
from cdmpp.execute.executor import LOCAL, executor_address
from cdmpp.network.runtime import INDUCTOR, RUNTIMES
from cdmpp.platform.limits import text


def add_device(
    verb: argparse.ArgumentParser, meaning: str = "name of a device, see `cdmpp devices`", required: bool = True
) -> None:
    """Declare ``--device``; ``required``: whether the verb needs it in any case."""
    verb.add_argument("--device", type=text, required=required, help=meaning)


def add_model(verb: argparse.ArgumentParser, meaning: str = "(default: one trained on the device)") -> None:
    """Declare ``--model``; ``meaning`` follows what it names."""
    verb.add_argument("--model", type=text, help=f"model folder or name of a shipped one {meaning}")


def add_runtime(verb: argparse.ArgumentParser, runtimes: Sequence[str] = RUNTIMES) -> None:
    """Declare which of ``runtimes`` runs a network, and with which schedules."""
    rule = "best_of:K (the best of K sampled schedules by prediction), untuned, or database:DIR (default best_of:16)"
    verb.add_argument("--schedule", type=text, help=rule)
    runtime = (
        "tvm, whose programs are scheduled, or torch, whose libraries serve it eagerly (default tvm; cdmpp plan: torch)"
    )
    if INDUCTOR in runtimes:
        runtime = f"{runtime}; {INDUCTOR}: kernels that Inductor fuses on a GPU, and those of the libraries"
        graphs = f"with --runtime {INDUCTOR}: the kernels are replayed as a CUDA graph, no host dispatches them"
        verb.add_argument("--cuda-graphs", action="store_true", default=None, help=graphs)
    verb.add_argument("--runtime", choices=runtimes, help=runtime)


def add_place(verb: argparse._ActionsContainer, required: bool = False) -> None:
    """Declare what connects the ranks: a cluster or a link."""
    place = verb.add_mutually_exclusive_group(required=required)
    place.add_argument("--cluster", type=text, help="a file of conf/cluster, such as dgx-a100")
    link = "a file of conf/interconnect, such as nvlink3, in place of a cluster, or a CSV file of bytes,seconds"
    place.add_argument("--link", type=text, help=link)


def add_executor(verb: argparse.ArgumentParser) -> None:
    """Declare where the work is done."""
    where = (
        f"{LOCAL}: processes of this machine, or dask://HOST:PORT: the workers of a Dask scheduler, with the same "
        f"result (default {LOCAL})"
    )
    verb.add_argument("--executor", type=address, default=LOCAL, metavar="WHERE", help=where)


def address(given: str) -> str:
    """Read the name of an executor, as ``type`` of ``argparse``."""
    try:
        return executor_address(given)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
