"""Topology: the ranks of one job, the links between them, and what an exchange takes there when nothing disturbs it.

A group of ranks is priced by its shape. All equal groups of a job act at the same time, so that ranks of one node whose
groups reach into other nodes share its adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import ClassVar

import numpy as np

from cdmpp import devices
from cdmpp.collectives import cluster as clusters
from cdmpp.collectives import interconnect
from cdmpp.collectives.algorithms import ring
from cdmpp.collectives.cluster import Cluster
from cdmpp.collectives.collective import RANKS, Collective, check_backend
from cdmpp.collectives.collective_model import CollectiveEstimate, shipped
from cdmpp.collectives.cost_curve import CostCurve
from cdmpp.collectives.curve import Curve
from cdmpp.collectives.group_shape import GroupShape, alike, check_members
from cdmpp.collectives.host import Host
from cdmpp.collectives.interconnect import AlphaBeta, Interconnect
from cdmpp.collectives.messages import read_messages, ring_of
from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.platform.limits import check_choice, check_fields, numbers
from cdmpp.simulate.flow import Flow

Cost = Callable[[Collective], CollectiveEstimate]
FarCost = Callable[[Collective, float], CollectiveEstimate]
"""Cost of a collective, and of how many flows share each adapter."""
_LONG_BYTES = 2**26
"""A message of so many bytes tells the bandwidth."""
_NEAR_FLAGS = {
    "bus": ("groups of one node share its bus, which no table tells: they may be slow",),
    "local": ("groups of one machine share its memory and its processors, which no table tells: they may be slow",),
    "mesh": (
        "a group of some devices of a mesh has only the links between these, which no table tells: it may be slow",
    ),
}
"""Kind of link inside a node -> the reason to doubt a group that leaves out some of its ranks."""


@dataclass(frozen=True)
class Topology:
    """Ranks fill nodes one after the other. Every rank has a way out and a way in, every adapter of a node too."""

    LIMITS: ClassVar = {
        **dict.fromkeys(("ranks", "nodes", "adapters"), RANKS),
        **dict.fromkeys(("near_rate", "far_rate"), numbers(0, 1e18, "bytes a second")),
    }

    name: str
    ranks: int
    backend: str
    """A key of ``collective.BACKENDS``."""
    near: Cost
    """Cost of a collective, or of a message between two ranks, inside a node."""
    near_rate: float
    """Bytes a second that one rank sends inside a node; it receives as many."""
    nodes: int = 1
    far: FarCost | None = None
    """The same between nodes. None: there is one node."""
    far_rate: float = 0.0
    """Bytes a second of one adapter."""
    adapters: int = 1
    """Adapters of each node, shared evenly by its ranks."""
    warnings: tuple[str, ...] = ()
    """Reasons to doubt all costs, a sentence each."""
    near_flags: tuple[str, ...] = ()
    """Reasons to doubt a group inside a node that leaves out some of its ranks, whose groups act next to it."""
    host: Host | None = None
    """The memory of each node; None where nothing describes it."""

    def __post_init__(self) -> None:
        check_fields(self, "topology.")
        check_backend(self.backend)

    @cached_property
    def rates(self) -> dict[str, float]:
        """Each link carries so many bytes a second."""
        ranks = {f"rank {rank} {way}": self.near_rate for rank in range(self.ranks) for way in ("out", "in")}
        adapters = [f"node {node} adapter {i}" for node in range(self.nodes) for i in range(self.adapters)]
        far = {f"{name} {way}": self.far_rate for name in adapters for way in ("out", "in")}
        return {**ranks, **far} if self.nodes > 1 else ranks

    def placed(self, rank_devices: Sequence[str]) -> Topology:  # noqa: ARG002
        """Return the topology as it is where ranks stand on these devices: all nodes are equal."""
        return self

    def on(self, device: str) -> Topology:  # noqa: ARG002
        """Return the topology as it would be, were all nodes those of a device: all nodes are equal."""
        return self

    def node_of(self, rank: int) -> int:
        """Return the number of the node."""
        return rank // (self.ranks // self.nodes)

    def way(self, source: int, target: int) -> tuple[str, ...]:
        """List the links that a message crosses."""
        if self.node_of(source) == self.node_of(target):
            return f"rank {source} out", f"rank {target} in"
        return f"{self._adapter(source)} out", f"{self._adapter(target)} in"

    def _adapter(self, rank: int) -> str:
        per_node = self.ranks // self.nodes
        return f"node {rank // per_node} adapter {rank % per_node * self.adapters // per_node}"

    def cost(self, collective: Collective, members: Sequence[int]) -> CollectiveEstimate:
        """Estimate a collective of a group of ranks while all equal groups of the job act too.

        Nodes first act inside, then with each other. gloo has one ring, whatever the nodes, and so has a group that
        spans nodes unevenly.

        Args:
            collective: what they exchange; its ranks are as many as ``members``.
            members: numbers of the ranks; of a message the sender, then the receiver.

        Raises:
            CdmppError: members that are no ranks of the job, or not as many as the collective says.
        """
        shape = self.shape(members)
        if collective.ranks != shape.ranks:
            raise CdmppError(f"{collective.kind} of {collective.ranks} ranks among {shape.ranks}: give as many")
        if (collective, shape) not in self._costs:
            self._costs[collective, shape] = self._of_shape(collective, shape)
        return self._costs[collective, shape]

    @cached_property
    def _costs(self) -> dict[tuple[Collective, GroupShape], CollectiveEstimate]:
        return {}

    def _of_shape(self, collective: Collective, shape: GroupShape) -> CollectiveEstimate:
        flags = list(self.near_flags) if 1 < shape.fewest < self.ranks // self.nodes else []
        if not shape.is_even:
            flags.append("nodes hold unequal numbers of a group's ranks: it is priced as one ring")
        if shape.nodes == 1 or self.far is None:
            parts = [self.near(collective)]
        else:
            flows = shape.flows(self.backend, collective.kind)
            cut = shape.parts(collective, self.backend)
            parts = [self.far(part, flows) if is_far else self.near(part) for part, is_far in cut]
        return CollectiveEstimate.total(parts, flags)

    def bounded(self, bound: str) -> Topology:
        """Return the topology on which everything takes its ``low_s`` or its ``high_s``, the ends of its interval."""

        def at_bound(cost: Callable[..., CollectiveEstimate]) -> Callable[..., CollectiveEstimate]:
            def bounded(collective: Collective, *flows: float) -> CollectiveEstimate:
                found = cost(collective, *flows)
                return replace(found, latency_s=getattr(found, bound))

            return cache(bounded)

        check_choice("bound", bound, ("low_s", "high_s"))
        return replace(self, near=at_bound(self.near), far=None if self.far is None else at_bound(self.far))

    def free(self) -> Topology:
        """Return the topology on which nothing takes any time."""
        nothing = certain(0.0, "nothing takes time")
        return replace(self, near=lambda _: nothing, far=None if self.far is None else lambda *_: nothing)

    def whole(self, collective: Collective) -> CollectiveEstimate:
        """Estimate a collective of all ranks."""
        return self.cost(collective, range(self.ranks))

    def latency_s(self, kind: str, sizes: np.ndarray, members: Sequence[int]) -> np.ndarray:
        """Return the seconds of collectives of one group, of many sizes at once: ``cost`` to one part in a thousand.

        Args:
            kind: a key of ``collective.KINDS``.
            sizes: bytes as ``KINDS`` counts them, of any shape; 0 takes no time.
            members: as of ``cost``.
        """
        return self._curve(kind, members).at(sizes)

    def start_up_s(self, kind: str, members: Sequence[int]) -> float:
        """Return the seconds of a collective of one byte."""
        return self._curve(kind, members).least_s

    def wire(self, source: int, target: int, least_bytes: float = 1.0) -> AlphaBeta:
        """Return the start of a message between two ranks that nothing disturbs, and the seconds a byte of long ones.

        ``least_bytes``: the smallest message of which anything is known; its bytes are no part of the start.
        ``CdmppError`` where one of them is no rank of the job.
        """
        sizes = np.array([least_bytes, _LONG_BYTES + least_bytes])
        small_s, large_s = self.latency_s("send_recv", sizes, (source, target))
        beta_s = float(large_s - small_s) / _LONG_BYTES
        start_s = float(small_s) if least_bytes <= 1 else max(float(small_s) - least_bytes * beta_s, 0.0)
        return AlphaBeta(start_s, beta_s)

    def _curve(self, kind: str, members: Sequence[int]) -> CostCurve:
        shape = self.shape(members)
        if (kind, shape) not in self._curves:
            self._curves[kind, shape] = CostCurve(
                lambda size: self._of_shape(Collective(kind, size, shape.ranks, self.backend), shape).latency_s
            )
        return self._curves[kind, shape]

    @cached_property
    def _curves(self) -> dict[tuple[str, GroupShape], CostCurve]:
        return {}

    @cached_property
    def _shapes(self) -> dict[tuple[int, ...], GroupShape]:
        return {}

    def shape(self, members: Sequence[int]) -> GroupShape:
        """Return how a group lies in the nodes; ``CdmppError`` where a member is no rank of the job, or twice there."""
        group = tuple(members)
        if group not in self._shapes:
            check_members(group, self.ranks)
            self._shapes[group] = GroupShape.of(group, self.ranks, self.nodes, self.adapters)
        return self._shapes[group]

    def copies(self, message: tuple[int, int], among: Set[tuple[int, int]]) -> int:
        """Count the messages between nodes that go as far over its adapter, for each of them that is ``among`` others.

        Where all ranks send, that is 1; where one rank sends in place of four that are alike, 4.
        """
        if self.shape(message).nodes == 1:
            return 1
        return max(
            -(-len(own) // max(len(own & among), 1)) for own in alike(*message, self.ranks, self.nodes, self.adapters)
        )

    def message(self, source: int, target: int, n_bytes: int) -> tuple[float, Flow]:
        """Return the seconds before the first byte, and the bytes on their way."""
        return self.share(Collective("send_recv", n_bytes, 2, self.backend), 1, ((source, target),))

    def share(
        self, collective: Collective, steps: int, pairs: Sequence[tuple[int, int]], is_far: bool | None = None
    ) -> tuple[float, Flow]:
        """Return one of equal ``steps`` of a collective, from the first to the second rank of the first of ``pairs``.

        Alone on its links a step takes its share of the whole. The flow has as many bytes as the tightest link of all
        pairs, which act at the same time, carries in that time: what a protocol adds comes on top of what is sent.
        """
        ways = [self.way(*pair) for pair in pairs]
        far = any(self.node_of(a) != self.node_of(b) for a, b in pairs) if is_far is None else is_far
        costs = [
            self.far(one, 1.0) if far and self.far is not None else self.near(one)
            for one in (collective, replace(collective, bytes=1))
        ]
        whole_s = costs[0].latency_s
        latency_s = min(costs[1].latency_s, whole_s) / steps
        rate = min(self.rates[link] for way in ways for link in way)
        return latency_s, Flow(rate * (whole_s / steps - latency_s), ways[0])


def check_ranks(ranks: int) -> None:
    """Raise ``CdmppError`` for what is no number of ranks, or more than ``MOST_RANKS``."""
    RANKS.fitting("ranks", ranks)


def topology_of(
    ranks: int,
    device: str | Device,
    cluster: str | None = None,
    link: str | None = None,
    backend: str | None = None,
    can_grow: bool = False,
) -> Topology:
    """Return the topology on which ``ranks`` of a device exchange: a cluster, or one link for all, by name.

    A link may also be a ``*.csv`` file of timed messages (``messages.read_messages``). ``backend`` is gloo on CPUs,
    rccl on AMD's GPUs and nccl elsewhere, unless it is given. With ``can_grow`` a cluster gets more nodes of its kind
    where ranks do not fit. ``warnings`` say so, and where a cluster has other devices. ``CdmppError`` where there is no
    such cluster, link or back end, neither or both are given, or ranks do not fit.
    """
    check_ranks(ranks)
    if cluster is not None and link is not None:
        raise CdmppError(f"cluster {cluster} and link {link}: a cluster names its own links, leave one out")
    device = devices.get(device) if isinstance(device, str) else device
    carries = backend or backend_of(device)
    if cluster is not None:
        described = clusters.get(cluster)
        grown = described.grown(ranks) if can_grow else described
        warnings = list[str]()
        if described.device != device.name:
            warnings.append(f"cluster {cluster} has {described.device}, and kernels are those of {device.name}")
        if grown is not described:
            warnings.append(
                f"cluster {cluster} is described with {described.nodes} nodes, and {grown.nodes} of this kind are "
                f"taken for {ranks:,} ranks: switches between them carry as much for all"
            )
        return replace(on_cluster(grown, ranks, carries), warnings=tuple(warnings), host=grown.host)
    if link is not None and link.endswith(".csv"):
        return by_messages(read_messages(link, carries), ranks, carries)
    if link is not None:
        return on_link(link, ranks, carries)
    if ranks > 1:
        raise CdmppError(f"{ranks} ranks, and no way between them: name a cluster or a link")
    return replace(fitted(AlphaBeta(0.0, 1e-9), 1, carries), name="no link")


def backend_of(device: Device) -> str:
    """Return what carries collectives of a device by default."""
    if device.kind == "cpu":
        return "gloo"
    return "rccl" if device.target.get("kind") == "rocm" else "nccl"


def on_link(link: str | Interconnect, ranks: int, backend: str = "nccl") -> Topology:
    """Join ranks of one node, by the shipped collective model; ``CdmppError`` where there is no such link."""
    on = interconnect.get(link) if isinstance(link, str) else link
    shipped().check(on, ranks, backend)
    cost = cache(lambda collective: shipped().predict(collective, on))
    return Topology(on.name, ranks, backend, cost, 1e9 * on.bandwidth_gbps, near_flags=_NEAR_FLAGS.get(on.topology, ()))


def on_cluster(cluster: Cluster, ranks: int, backend: str = "nccl") -> Topology:
    """Join ranks of a cluster; ``CdmppError``: they do not fit, fill nodes unevenly, or a link takes no ``backend``."""
    model, between = shipped(), cluster.between
    nodes = cluster.nodes_of(ranks)
    model.check(cluster.inside, ranks // nodes, backend)
    if nodes > 1 and between is not None:
        model.check(between, nodes, backend)
    near = cache(lambda collective: model.predict(collective, cluster.inside))
    near_rate, flags = 1e9 * cluster.inside.bandwidth_gbps, _NEAR_FLAGS.get(cluster.inside.topology, ())
    if nodes == 1 or between is None:
        return Topology(cluster.name, ranks, backend, near, near_rate, near_flags=flags)
    adapters = min(cluster.adapters_per_node, ranks // nodes)
    far = cache(lambda collective, flows=1.0: model.predict(collective, between, shared_by=flows))
    far_rate = 1e9 * between.bandwidth_gbps
    return Topology(cluster.name, ranks, backend, near, near_rate, nodes, far, far_rate, adapters, near_flags=flags)


def by_messages(curve: Curve, ranks: int, backend: str = "nccl") -> Topology:
    """Join ranks by links whose messages take what a curve says, as ``messages.ring_of`` has it."""
    return Topology("timed messages", ranks, backend, ring_of(curve), float(np.max(curve.bytes / curve.latency_s)))


def fitted(wire: AlphaBeta, ranks: int, backend: str = "gloo") -> Topology:
    """Join ranks in rings of which each message takes ``wire``: two numbers fitted to one set-up."""
    cost = cache(lambda collective: certain(ring(collective, wire), "two fitted numbers"))
    return Topology("fitted", ranks, backend, cost, 1.0 / wire.beta_s)


def certain(seconds: float, source: str, *flags: str) -> CollectiveEstimate:
    """Return an estimate without a spread."""
    return CollectiveEstimate(seconds, seconds, seconds, source, flags)
