"""GroupShape: how a group of ranks lies in the nodes of a job. Groups of one shape take as long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.collectives.algorithms import parts
from cdmpp.collectives.collective import Collective
from cdmpp.errors import CdmppError, some


@dataclass(frozen=True)
class GroupShape:
    """Ranks fill nodes one after the other, and those of a node share its adapters evenly."""

    ranks: int
    nodes: int
    """It spans so many nodes."""
    fewest: int
    """A node that it spans holds at least so many of its ranks."""
    is_even: bool
    """True if every node that it spans holds as many."""
    per_adapter: float
    """Ranks of a node for each of its adapters."""
    messages: int
    """Messages from and to ranks of one adapter, while all pairs of ranks that lie like its first and its last send."""
    devices: tuple[str, ...] = ()
    """Devices of the nodes that it spans, where nodes are unlike; empty where all are equal."""

    @classmethod
    def of(cls, members: Sequence[int], ranks: int, nodes: int, adapters: int) -> GroupShape:
        """Return the shape of a group of a job of ``ranks`` ranks on ``nodes`` equal nodes."""
        per_node = ranks // nodes
        held = Counter(rank // per_node for rank in members).values()
        is_pair = len(held) == len(members) == 2
        messages = max(map(len, alike(members[0], members[1], ranks, nodes, adapters))) if is_pair else 1
        return cls(len(members), len(held), min(held), len(set(held)) == 1, per_node / adapters, messages)

    def is_ring(self, backend: str) -> bool:
        """Return True if one ring goes through all ranks, whatever the nodes, and not one in each node first."""
        return backend == "gloo" or not self.is_even

    def parts(self, collective: Collective, backend: str) -> list[tuple[Collective, bool]]:
        """List the collectives that make up one of the group, in order, and whether each is between nodes."""
        if self.is_ring(backend):
            return [(collective, self.nodes > 1)]
        return parts(collective, self.nodes)

    def flows(self, backend: str, kind: str) -> float:
        """Count the flows that share an adapter; a ring leaves each node that it goes through once."""
        if kind == "send_recv":
            return self.messages
        return self.per_adapter / (self.fewest if self.is_ring(backend) else 1)


def check_members(members: Sequence[int], ranks: int) -> None:
    """Raise ``CdmppError`` unless ``members`` are numbers of ranks of a job of ``ranks`` ranks, each once."""
    if not members or len(set(members)) < len(members) or not 0 <= min(members) <= max(members) < ranks:
        given = some([str(one) for one in members], ", ", 8) or "none"
        raise CdmppError(f"a group of ranks {given}: expected one or more of 0 to {ranks - 1}, each once")


def alike(sender: int, receiver: int, ranks: int, nodes: int, adapters: int) -> tuple[set[tuple[int, int]], ...]:
    """List messages out of the sender's adapter and into the receiver's, one from every rank that can send as far."""
    per_node, far = ranks // nodes, receiver - sender

    def adapter(rank: int) -> tuple[int, int]:
        return rank // per_node, rank % per_node * adapters // per_node

    def beside(rank: int) -> list[int]:
        node = rank // per_node * per_node
        return [one for one in range(node, node + per_node) if adapter(one) == adapter(rank)]

    pairs = ([(one, one + far) for one in beside(sender)], [(one - far, one) for one in beside(receiver)])
    return tuple(
        {(a, b) for a, b in own if 0 <= min(a, b) <= max(a, b) < ranks and a // per_node != b // per_node}
        for own in pairs
    )
