"""Chakra traces on the command line: written by ``--chakra``, read by ``cdmpp trace``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cdmpp.cli.output import say, show, warn
from cdmpp.errors import UsageError
from cdmpp.platform.limits import path

if TYPE_CHECKING:
    from cdmpp.collectives.topology import Topology
    from cdmpp.steps.step_graph import StepGraph


def add_chakra(verb: argparse.ArgumentParser) -> None:
    """Declare the folder that traces are written to."""
    words = "write the step of all ranks as Chakra execution traces, which ASTRA-sim runs"
    verb.add_argument("--chakra", type=path, metavar="FOLDER", help=words)


def check_chakra(options: argparse.Namespace) -> None:
    """Raise ``CdmppError`` where traces cannot be written, before anything is done."""
    if options.chakra is None:
        return
    from cdmpp.trace.chakra.messages import schema

    if options.chakra.exists() and not options.chakra.is_dir():
        raise UsageError(f"--chakra {options.chakra} is a file: name a folder")
    schema()


def save_chakra(graph: StepGraph | None, options: argparse.Namespace) -> None:
    """Write the traces of a step where ``--chakra`` asks for them."""
    if options.chakra is None or graph is None:
        return
    from cdmpp.trace.chakra import write_chakra

    written = write_chakra(graph, options.chakra)
    if any(len(rank.streams) > 1 for rank in graph.ranks):
        warn("ops stand on several streams of a rank: ASTRA-sim runs one compute node of a rank at a time")
    say(f"wrote {len(written)} files in {options.chakra}")


def replay_chakra(options: argparse.Namespace) -> None:
    """Replay the Chakra traces of ``options.folder`` on a cluster or link, and show the report."""
    from cdmpp.report.replay import replay_report
    from cdmpp.steps.bounds import alone_s
    from cdmpp.steps.strategy_replay import replay_exchanges
    from cdmpp.trace.chakra import read_chakra

    graph = read_chakra(options.folder)
    topology = _topology(graph, options)
    replayed = replay_exchanges(graph, f"Chakra traces of {options.folder.name}", topology, alone_s(graph))
    save_chakra(graph, options)
    show({"": replay_report(replayed)}, options)


def _topology(graph: StepGraph, options: argparse.Namespace) -> Topology:
    from cdmpp.collectives import cluster
    from cdmpp.collectives.messages import read_messages
    from cdmpp.collectives.topology import by_messages, on_cluster, on_link

    ranks, backend = len(graph.ranks), options.backend or graph.backend or "nccl"
    if options.cluster is not None:
        return on_cluster(cluster.get(options.cluster), ranks, backend)
    if options.link is None:
        raise UsageError("--link or --cluster is missing: Chakra traces do not say what their exchanges go over")
    if options.link.endswith(".csv"):
        return by_messages(read_messages(options.link, backend), ranks, backend)
    return on_link(options.link, ranks, backend)
