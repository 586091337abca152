"""``cdmpp collective``: how long one collective takes on a link or a cluster."""

from __future__ import annotations

import argparse
import re

from cdmpp.cli.options import add_place
from cdmpp.cli.output import add_output_arguments, check_output, show
from cdmpp.collectives.collective import MESSAGE, RANKS
from cdmpp.errors import UsageError
from cdmpp.platform.limits import shown, text

_UNITS = {"": 1, "B": 1, **{f"{p}B": 1000**n for n, p in enumerate("kMGT", 1)},
          **{f"{p}iB": 1024**n for n, p in enumerate("KMGT", 1)}}  # fmt: skip


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    kinds = "all_reduce, all_gather, reduce_scatter, broadcast, all_to_all or send_recv, or in the spelling of NCCL"
    verb.add_argument("kind", type=text, help=kinds)
    verb.add_argument(
        "size", type=text, help="bytes, such as 64MiB: of one rank's whole buffer, gathered or not yet scattered"
    )
    verb.add_argument("--ranks", type=RANKS, required=True, help="how many devices take part")
    add_place(verb, required=True)
    verb.add_argument("--backend", type=text, default="nccl", help="nccl (default), rccl, oneccl, gloo or custom")
    verb.add_argument("--system", type=text, help="which measured system answers, where several have the link")
    add_output_arguments(verb, "csv", "html")


def run(options: argparse.Namespace) -> None:
    """Predict, and show the report."""
    check_output(options)
    from cdmpp.collectives import cluster
    from cdmpp.collectives.collective import Collective, kind_named
    from cdmpp.collectives.collective_model import shipped
    from cdmpp.collectives.messages import read_messages
    from cdmpp.collectives.topology import by_messages, on_cluster
    from cdmpp.report.collective import collective_report

    asked = Collective(kind_named(options.kind), read_bytes(options.size), options.ranks, options.backend)
    if options.system and (options.cluster or options.link.endswith(".csv")):
        raise UsageError(f"--system {options.system} goes with --link NAME: a cluster or a file has its own links")
    if options.cluster:
        found = on_cluster(cluster.get(options.cluster), asked.ranks, asked.backend).whole(asked)
    elif options.link.endswith(".csv"):
        found = by_messages(read_messages(options.link, asked.backend), asked.ranks, asked.backend).near(asked)
    else:
        found = shipped().predict(asked, options.link, options.system)
    show({"": collective_report(asked, found)}, options)


def read_bytes(given: str) -> int:
    """Read ``64MiB`` as 67108864; ``UsageError`` names the units."""
    read = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", given)
    if read is None or read[2] not in _UNITS:
        raise UsageError(
            f"size {shown(given)}: expected a number and one of {', '.join(unit for unit in _UNITS if unit)}"
        )
    count = float(read[1]) * _UNITS[read[2]]
    if count not in MESSAGE:
        raise UsageError(f"size {shown(given)}: expected 1 byte to {MESSAGE.most / 1e12:g} TB")
    return round(count)
