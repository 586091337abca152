"""Questions about plans, made of names: devices, a cluster or a link, memory in gigabytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp import devices
from cdmpp.collectives.topology import Topology, topology_of
from cdmpp.collectives.unlike_topology import unlike_topology
from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.plans.question import Question
from cdmpp.plans.sources.source import StepSource
from cdmpp.plans.sources.unlike import UnlikeSource
from cdmpp.plans.unlike.question import UnlikeQuestion

Links = dict[str, str | None]
"""Arguments of ``topology_of``: cluster, link, backend."""


def equal_question(
    source: StepSource, device: Device, ranks: int, global_batch: int, links: Links, memory_gb: float | None = None,
    **settings: Any,
) -> Question:  # fmt: skip
    """Return the question which way to train on equal devices; a small cluster grows, with a warning.

    Args:
        source: what a rank of the device takes.
        device: the device of all ranks.
        ranks: number of devices.
        global_batch: examples of all devices in one step.
        links: ``cluster``, ``link`` and ``backend``, by name.
        memory_gb: most memory of a device, in 1e9 bytes; None: that of its datasheet.
        settings: other fields of a ``Question``.

    Raises:
        CdmppError: there is no such cluster or link, or ranks do not fit.
    """

    def topology(count: int) -> Topology:
        return topology_of(count, device, can_grow=True, **links)

    topology(ranks)
    limit = device.spec["memory_gb"] if memory_gb is None else memory_gb
    limit_bytes = None if limit is None else 1e9 * limit
    return Question(
        source, topology, ranks, global_batch, memory_limit_bytes=limit_bytes, is_gpu=device.kind != "cpu", **settings
    )


def unlike_question(
    sources: Mapping[str, StepSource], counts: Mapping[str, int], global_batch: int, links: Links,
    memory_gb: float | None = None, warnings: tuple[str, ...] = (), **settings: Any,
) -> UnlikeQuestion:  # fmt: skip
    """Return the question which way to train on devices that differ, and which of them holds what.

    Args:
        sources: device -> what a rank of it takes.
        counts: device -> ranks on it, in the order in which nodes stand in the cluster.
        global_batch: examples of all devices in one step.
        links: ``cluster``, ``link`` and ``backend``, by name.
        memory_gb: most memory of each device, in 1e9 bytes; None: that of its datasheet, and none where it has none.
        warnings: what was assumed, a sentence each.
        settings: other fields of an ``UnlikeQuestion``.

    Raises:
        CdmppError: there is no such cluster or link, or its nodes are not of these devices.
    """
    ordered = tuple(name for name, count in counts.items() for _ in range(count))
    topology = unlike_topology(ordered, **links)

    def same(ranks: int) -> Topology:
        if ranks != len(ordered):
            raise CdmppError(f"there are {len(ordered)} devices, and {ranks} are asked for")
        return topology

    known = {name: devices.get(name) for name in counts if name in devices.names()}
    told, limits = list(warnings), dict[str, float]()
    for name in counts:
        limit = known[name].spec["memory_gb"] if memory_gb is None and name in known else memory_gb
        if limit is None:
            told.append(f"nothing says how much memory {name} has: it is no limit; give --memory-gb")
        else:
            limits[name] = 1e9 * limit
    gpus = frozenset(name for name in counts if name not in known or known[name].kind != "cpu")
    return UnlikeQuestion(
        UnlikeSource(dict(sources)), same, len(ordered), global_batch, is_gpu=bool(gpus), warnings=tuple(told),
        counts=dict(counts), memory_limits=limits, gpus=gpus, **settings,
    )  # fmt: skip
