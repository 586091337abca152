"""RingStage: the part of a collective that groups of ranks carry out at the same time, each around a ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.topology import Topology


@dataclass(frozen=True)
class RingStage:
    """Groups of ranks carry out this part of a collective at the same time."""

    collective: Collective
    """The collective of one group."""
    groups: tuple[tuple[int, ...], ...]
    is_far: bool
    """True if the members of a group stand in different nodes."""


def ring_stages(topology: Topology, collective: Collective, members: Sequence[int]) -> list[RingStage]:
    """List the stages of a collective of a group, one after the other, as ``Topology.cost`` prices them."""
    if len(members) == 1:
        return []
    shape, by_node = topology.shape(members), dict[int, list[int]]()
    for rank in members:
        by_node.setdefault(topology.node_of(rank), []).append(rank)
    if shape.is_ring(topology.backend):
        return [RingStage(collective.runs_as, (tuple(members),), shape.nodes > 1)]
    inside, across = tuple(map(tuple, by_node.values())), tuple(zip(*by_node.values(), strict=True))
    return [
        RingStage(part, across if is_far else inside, is_far)
        for part, is_far in shape.parts(collective, topology.backend)
    ]
