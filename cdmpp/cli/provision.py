"""Machines for parameter servers: ``cdmpp plan NET --strategy ps --machines N`` chooses workers and servers."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from cdmpp.cli.output import show
from cdmpp.cli.step import checked_runtime
from cdmpp.errors import UsageError
from cdmpp.plans.provisioning.configuration import MACHINES
from cdmpp.plans.provisioning.counts import Counts
from cdmpp.platform.limits import Limits, numbers, text
from cdmpp.units import percent

if TYPE_CHECKING:
    from cdmpp.collectives.interconnect import AlphaBeta
    from cdmpp.devices import Device
    from cdmpp.plans.sources.source import StepSource

SPREAD = 0.05
"""Standard deviation of the seconds of a batch where nobody says it, as a part of their mean."""
BATCH = 32
"""Examples of a batch where nobody says it."""
REPLAYS = 5
"""Configurations that are replayed at most."""
_OPTIONS = (
    "workers", "servers", "machines_per_replica", "threads", "commit_every", "synchrony", "spread",
    "thread_slowdown", "add_gbps",
)  # fmt: skip
_OTHERS = (
    "plan", "save_plan", "torch", "ranks", "global_batch", "strategies", "price", "explain", "scaling", "calibrate",
    "accumulate_steps", "input_samples_per_s", "straggler", "ring_steps", "timeline",
)  # fmt: skip
"""Options of other searches."""


def counts(given: str) -> Counts:
    """Read a range of a command line, as ``type`` of ``argparse``."""
    try:
        return Counts.read(given)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_provision_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the budget, and between which numbers to choose."""
    group = verb.add_argument_group("machines for parameter servers (--strategy ps --machines N)")
    group.add_argument("--machines", type=MACHINES, help="the budget: machines that train, and servers")
    for option, what in (
        ("--workers", "machines that train, such as 16 or 4..16 (default: what servers leave)"),
        ("--servers", "machines that are servers, such as 2 or 1..8 (default: 1 up to the budget)"),
        ("--machines-per-replica", "machines over which the layers of a replica are divided (default 1)"),
        ("--threads", "threads of a machine, each with a batch of its own on one --device (default 1)"),
    ):
        group.add_argument(option, type=counts, metavar="A..B", help=what)
    every = "batches of a replica between two commits (default 1)"
    group.add_argument("--commit-every", type=Limits(1, 2**31, "batches"), metavar="K", help=every)
    group.add_argument("--synchrony", type=text, help="async, ssp:SLACK or bsp (default async)")
    varies = f"standard deviation of the seconds of a batch, as a part of their mean (default {SPREAD:g})"
    group.add_argument("--spread", type=numbers(0, 10), help=varies)
    slower = (
        "measured factors of the seconds of a batch with 1, 2, ... threads, such as 1,1.1,1.3 (default: from the "
        "memory bandwidth of the device's sheet, where it has one)"
    )
    group.add_argument("--thread-slowdown", type=text, metavar="A,B,C", help=slower)
    adds = "GB (1e9 bytes) of updates that a server adds in a second (default: adding takes no time)"
    group.add_argument("--add-gbps", type=numbers(0, 10**6, "GB/s", above=True), help=adds)


def is_asked(options: argparse.Namespace) -> bool:
    """Return True if machines are to be chosen; ``UsageError`` for options of that choice without a budget."""
    if options.machines is not None:
        if options.strategy not in (None, "ps"):
            raise UsageError(f"--machines goes with --strategy ps, given {options.strategy}: leave one of them out")
        return True
    if given := [name for name in _OPTIONS if getattr(options, name) is not None]:
        raise UsageError(f"--{given[0].replace('_', '-')} goes with --machines: say how many machines may be bought")
    return False


def provision(options: argparse.Namespace, source_of: Callable[[argparse.Namespace, Device], StepSource]) -> None:
    """Choose the machines, and show them."""
    if given := [name for name in _OTHERS if getattr(options, name)]:
        raise UsageError(f"--{given[0].replace('_', '-')} does not go with --machines: leave one of them out")
    checked_runtime(options)
    from cdmpp import devices
    from cdmpp.plans.provisioning.question import ProvisioningQuestion
    from cdmpp.plans.provisioning.search import provision as search
    from cdmpp.report.provisioning import provisioning_report
    from cdmpp.synchrony.policies import synchrony_of

    device = devices.get(options.device)
    threads = options.threads or Counts(1, 1)
    limit = device.spec["memory_gb"] if options.memory_gb is None else options.memory_gb
    link, told = _link(options, device)
    source, batch = source_of(options, device), options.batch or BATCH
    slowdown, more = _slowdown(options, device, source, batch, threads)
    assumed = (
        *(() if options.batch else (f"no batch is given: {BATCH} examples in a batch of each thread",)),
        *(() if options.spread is not None else (f"batches are taken to vary by {percent(SPREAD)}",)),
        *(() if options.add_gbps else ("servers are taken to add updates in no time",)),
    )
    found = ProvisioningQuestion(
        source, link, options.machines, batch, spread=SPREAD if options.spread is None else options.spread,
        machines_per_replica=options.machines_per_replica or Counts(1, 1), threads=threads,
        synchrony=synchrony_of(options.synchrony or "async"), commit_every=options.commit_every or 1,
        overlap=not options.no_overlap, slowdown=slowdown,
        add_bytes_per_s=1e9 * options.add_gbps if options.add_gbps else math.inf,
        memory_limit_bytes=None if limit is None else 1e9 * limit, is_gpu=device.kind != "cpu",
        warnings=(*told, *more, *assumed),
        **{name: value for name in ("workers", "servers") if (value := getattr(options, name)) is not None},
    )  # fmt: skip
    show({"": provisioning_report(search(found, options.top, min(options.replays, REPLAYS)))}, options)


def _link(options: argparse.Namespace, device: Device) -> tuple[AlphaBeta, tuple[str, ...]]:
    """The link of a machine, and warnings of its cluster."""
    from cdmpp.collectives import cluster
    from cdmpp.collectives.machine_link import machine_link
    from cdmpp.collectives.topology import topology_of
    from cdmpp.plans.plan_topology import place_backend

    if options.cluster is not None and options.link is not None:
        raise UsageError(
            f"--cluster {options.cluster} and --link {options.link}: a cluster names its own links, leave one out"
        )
    if options.link is not None:
        return machine_link(options.link, options.backend), ()
    if options.cluster is None:
        raise UsageError("nothing says what joins the machines: give --link, such as ethernet-10g, or --cluster")
    nodes = cluster.get(options.cluster)
    ranks = 2 * nodes.devices_per_node
    backend = options.backend or place_backend(options.cluster, None, ranks)
    topology = topology_of(ranks, device, options.cluster, None, backend, can_grow=True)
    return topology.wire(0, nodes.devices_per_node), topology.warnings


def _slowdown(
    options: argparse.Namespace, device: Device, source: StepSource, batch: int, threads: Counts
) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Factors of the seconds of threads, and what was assumed of them."""
    if options.thread_slowdown is not None:
        try:
            return tuple(float(one) for one in options.thread_slowdown.split(",")), ()
        except ValueError:
            raise UsageError(
                f"--thread-slowdown {options.thread_slowdown}: expected numbers from 1 up, such as 1,1.1,1.3"
            ) from None
    if threads.last == 1:
        return (), ()
    rate = device.spec["bandwidth_gbps"]
    if rate is None:
        return (), (f"the sheet of {device.name} has no memory bandwidth: threads are taken not to slow each other",)
    from cdmpp.plans.degrees import ParallelDegrees
    from cdmpp.plans.provisioning.replica import slowdowns

    factor = slowdowns(source.work(batch, ParallelDegrees()), 1e9 * rate)
    told = "threads are slowed down as if their ops kept nothing in caches: measured --thread-slowdown is better"
    return tuple(factor(count) for count in range(1, threads.last + 1)), (told,)
