"""UnlikeTopology: nodes of several kinds. What is exchanged between them takes as long as among nodes of the slowest.

An exchange through several adapters goes at the rate of the slowest of them, as a chain of links does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from cdmpp import devices
from cdmpp.collectives.cluster import Cluster
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.collective_model import CollectiveEstimate
from cdmpp.collectives.group_shape import GroupShape
from cdmpp.collectives.topology import Topology, backend_of, on_cluster, topology_of
from cdmpp.collectives.unlike_cluster import UnlikeCluster
from cdmpp.collectives.unlike_cluster import get as described
from cdmpp.errors import CdmppError, UsageError
from cdmpp.simulate.flow import Flow


@dataclass(frozen=True, kw_only=True)
class UnlikeTopology(Topology):
    """Its own ``near`` and ``far`` are those of one of its kinds, and price nothing."""

    parts: Mapping[str, Topology]
    """Device -> the same job, were all nodes those of the device."""
    node_devices: tuple[str, ...]
    """Device of each node."""

    @property
    def per_node(self) -> int:
        """Return the ranks of each node."""
        return self.ranks // self.nodes

    def placed(self, rank_devices: Sequence[str]) -> Self:
        """Return the topology with its nodes in the order in which ranks stand on devices.

        ``CdmppError`` where ranks of one node stand on unlike devices, or there are not as many nodes of each.
        """
        if not rank_devices:
            raise CdmppError(
                f"{self.name} has nodes of {', '.join(self.parts)}: a plan must say where each rank stands"
            )
        found = list[str]()
        for node in range(self.nodes):
            own = rank_devices[node * self.per_node :][: self.per_node]
            if len(set(own)) > 1:
                first, last = node * self.per_node, (node + 1) * self.per_node - 1
                raise CdmppError(
                    f"ranks {first} to {last} share node {node} of {self.name}, and stand on "
                    f"{' and '.join(dict.fromkeys(own))}: the devices of a node are equal"
                )
            found.append(own[0])
        if Counter(found) != Counter(self.node_devices):
            given, has = (_counted(one, self.per_node) for one in (found, self.node_devices))
            raise CdmppError(f"ranks stand on {given}, and the job has {has}")
        return replace(self, node_devices=tuple(found))

    def on(self, device: str) -> Topology:
        """Return the same job, were all nodes those of a device."""
        return self.parts[device]

    def shape(self, members: Sequence[int]) -> GroupShape:
        """Return how a group lies in the nodes, and of which devices these are."""
        found = super().shape(members)
        if not found.devices:
            own = {self.node_devices[self.node_of(rank)]: None for rank in members}
            found = self._shapes[tuple(members)] = replace(found, devices=tuple(sorted(own)))
        return found

    def _of_shape(self, collective: Collective, shape: GroupShape) -> CollectiveEstimate:
        bare = replace(shape, devices=())
        each = (self.parts[name]._of_shape(collective, bare) for name in shape.devices)
        return max(each, key=lambda one: one.latency_s)

    @cached_property
    def rates(self) -> dict[str, float]:
        """Each link carries so many bytes a second."""
        each = {name: part.rates for name, part in self.parts.items()}

        def node(link: str) -> int:
            number = int(link.split()[1])
            return number if link.startswith("node") else self.node_of(number)

        return {link: each[self.node_devices[node(link)]][link] for link in next(iter(each.values()))}

    def bounded(self, bound: str) -> Topology:
        """Return the topology on which everything takes its ``low_s`` or its ``high_s``."""
        return replace(self, parts={name: part.bounded(bound) for name, part in self.parts.items()})

    def free(self) -> Topology:
        """Return the topology on which nothing takes any time."""
        return replace(self, parts={name: part.free() for name, part in self.parts.items()})

    def share(
        self, collective: Collective, steps: int, pairs: Sequence[tuple[int, int]], is_far: bool | None = None
    ) -> tuple[float, Flow]:
        """Return one of equal ``steps`` of a collective as on nodes of the slowest device of ``pairs``."""
        names = {self.node_devices[self.node_of(rank)] for pair in pairs for rank in pair}
        found = [(self.parts[name], self.parts[name].share(collective, steps, pairs, is_far)) for name in sorted(names)]

        def alone_s(one: tuple[Topology, tuple[float, Flow]]) -> float:
            part, (latency_s, flow) = one
            return latency_s + flow.bytes / min(part.rates[link] for link in flow.links)

        part, (latency_s, flow) = max(found, key=alone_s)
        own, like = (min(one.rates[link] for pair in pairs for link in one.way(*pair)) for one in (self, part))
        return latency_s, replace(flow, bytes=flow.bytes * own / like, links=self.way(*pairs[0]))


def _counted(names: Iterable[str], each: int) -> str:
    return ", ".join(f"{each * many} of {name}" for name, many in Counter(names).items())


def unlike_topology(
    rank_devices: Sequence[str], cluster: str | None = None, link: str | None = None, backend: str | None = None
) -> Topology:
    """Return the topology on which ranks on these devices exchange.

    Args:
        rank_devices: name of the device of each rank; those that the product does not know are taken for GPUs.
        cluster: a name of ``conf/cluster``, or a ``*.yaml`` file; it may have nodes of several kinds.
        link: a name of ``conf/interconnect`` in its place, or a table of messages: all ranks have it.
        backend: what carries collectives; None: what fits the devices.

    Raises:
        UsageError: devices that no one back end joins.
        CdmppError: as ``topology_of``, and ranks that do not fit or share a node with others.
    """
    names = list(dict.fromkeys(rank_devices))
    known = [devices.get(name) for name in names if name in devices.names()]
    carries = {backend_of(one) for one in known} or {"nccl"}
    if backend is None and len(carries) > 1:
        raise UsageError(f"{' and '.join(names)} take {' and '.join(sorted(carries))}: name one by --backend")
    backend = backend or next(iter(carries))
    found = described(cluster) if cluster is not None else None
    if found is None:
        stands_for = known[0] if known else devices.get("a100")
        topology = topology_of(len(rank_devices), stands_for, cluster, link, backend, can_grow=True)
        other = [name for name in names if cluster is not None and known and name != known[0].name]
        told = (f"cluster {cluster} has equal nodes: those of {', '.join(other)} get its links too",) if other else ()
        return replace(topology, warnings=(*topology.warnings, *told))
    return on_unlike(found, rank_devices, backend)


def on_unlike(cluster: UnlikeCluster, rank_devices: Sequence[str], backend: str = "nccl") -> Topology:
    """Join ranks of a cluster with nodes of several kinds; ``CdmppError`` where they do not fit."""
    counts, ranks = Counter(rank_devices), len(rank_devices)
    each = cluster.per_node(counts)
    parts = dict[str, Topology]()
    for name in counts:
        kind = cluster.kind(name)
        like = Cluster(
            cluster.name, cluster.name, _STANDS_FOR[backend == "gloo"], ranks // each, each, kind.inside, kind.between,
            min(cluster.adapters_per_node, each), cluster.name,
        )  # fmt: skip
        parts[name] = on_cluster(like, ranks, backend)
    first = next(iter(parts.values()))
    if len(parts) == 1:
        return first
    ordered = [name for name in counts for _ in range(counts[name] // each)]
    made = UnlikeTopology(
        first.name, ranks, backend, first.near, first.near_rate, first.nodes, first.far, first.far_rate,
        first.adapters, parts=parts, node_devices=tuple(ordered),
    )  # fmt: skip
    return made.placed(rank_devices)


_STANDS_FOR = ("a100", "epyc-genoa")
"""A GPU and a CPU: a topology does not depend on more of a device."""
