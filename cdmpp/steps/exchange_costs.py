"""ExchangeCosts: what the exchanges of a step graph take on the links of a job, and which streams carry them."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace

from cdmpp.collectives.topology import Topology
from cdmpp.simulate.flow import Flow
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.keys import Stream

COMMUNICATION = "communication"
"""The stream of a rank that carries collectives of all ranks; those of a group have its name behind it."""


@dataclass(frozen=True, eq=False)
class ExchangeCosts:
    """Exchanges of equal kind, bytes and ranks are priced once: a pipeline has the same message many times."""

    topology: Topology
    messages: Set[tuple[int, int]] = frozenset()
    """Sender and receiver of all messages of the step graph, in ranks of the job; a folded one that is not among them
    stands for all that are like it."""
    _costs: dict[object, tuple[float, Flow | None]] = field(default_factory=dict, repr=False)
    _streams: dict[object, tuple[Stream, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def on(cls, topology: Topology, exchanges: Iterable[Exchange]) -> ExchangeCosts:
        """Return the costs of all exchanges of a step graph."""
        pairs = (one.participants for one in exchanges if one.kind == "send_recv")
        return cls(topology, {(pair[0], pair[1]) for pair in pairs if len(pair) == 2})

    def of(self, one: Exchange) -> tuple[float, Flow | None]:
        """Return the seconds of an exchange that was not measured, before the first byte where it has a flow."""
        key = one.kind, one.bytes, one.members, one.group, tuple(one.after)
        if key not in self._costs:
            self._costs[key] = self._of(one)
        return self._costs[key]

    def _of(self, one: Exchange) -> tuple[float, Flow | None]:
        members, topology = one.participants, self.topology
        if one.kind != "send_recv" or len(members) != 2:
            return topology.cost(one.collective(topology.backend), members).latency_s, None
        pair = members[0], members[1]
        latency_s, flow = topology.message(*pair, one.bytes)
        return latency_s, replace(flow, count=topology.copies(pair, self.messages) if one.is_folded else 1)

    def streams(self, one: Exchange) -> tuple[Stream, ...]:
        """List the streams of an exchange as ``streams_of`` does."""
        key = one.kind == "send_recv", one.members, one.group, tuple(one.after)
        if key not in self._streams:
            self._streams[key] = streams_of(one, self.topology.ranks)
        return self._streams[key]


def streams_of(exchange: Exchange, ranks: int) -> tuple[Stream, ...]:
    """List the streams of its ranks that carry an exchange that was not measured, one after the other.

    Every process group has a stream or worker threads of its own, as with NCCL and gloo. Messages have one a pair of
    ranks and direction: pipelines send and receive in one batch. ``ranks``: those of the job.
    """
    if exchange.kind == "send_recv":
        sender, receiver = exchange.peers or (exchange.ranks[0], exchange.ranks[-1])
        source, target = exchange.participants[0], exchange.participants[-1]
        return Stream(sender, f"to {target}"), Stream(receiver, f"from {source}")
    members = exchange.participants
    group = exchange.group or ("" if len(members) == ranks else f"of {','.join(map(str, members))}")
    return tuple(Stream(rank, f"{COMMUNICATION} {group}".strip()) for rank in exchange.ranks)
