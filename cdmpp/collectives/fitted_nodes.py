"""Nodes joined by fitted numbers: two wires, inside a node and between nodes."""

from __future__ import annotations

from functools import cache

from cdmpp.collectives.algorithms import ring
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.collective_model import CollectiveEstimate
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import Topology, certain, fitted

_SOURCE = "four fitted numbers"


def fitted_nodes(
    inside: AlphaBeta, between: AlphaBeta, ranks: int, nodes: int, adapters: int = 1, backend: str = "nccl"
) -> Topology:
    """Join ranks as ``fitted`` does, by two wires.

    Args:
        inside: what each message takes inside a node.
        between: what it takes between nodes for a flow that has an adapter to itself.
        ranks: of the job, in equal nodes.
        nodes: number of nodes; of one, only ``inside`` counts.
        adapters: of each node.
        backend: what carries the collectives.
    """
    if nodes == 1:
        return fitted(inside, ranks, backend)

    @cache
    def far(collective: Collective, flows: float = 1.0) -> CollectiveEstimate:
        wire = AlphaBeta(between.alpha_s, between.beta_s * max(flows, 1.0))
        return certain(ring(collective, wire), _SOURCE)

    near = cache(lambda collective: certain(ring(collective, inside), _SOURCE))
    return Topology("fitted", ranks, backend, near, 1.0 / inside.beta_s, nodes, far, 1.0 / between.beta_s, adapters)
