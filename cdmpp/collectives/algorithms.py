"""Closed forms: what a collective takes where each message takes ``alpha + bytes * beta``.

Sources: Thakur, Rabenseifner and Gropp, *Optimization of Collective Communication Operations in MPICH*, 2005;
Patarasuk and Yuan, *Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations*, 2009; Li et al., *Scaling
Distributed Machine Learning with the Parameter Server*, 2014. Ranks send and receive at the same time.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import CdmppError


def ring(collective: Collective, link: AlphaBeta) -> float:
    """Compute the seconds around a ring; a broadcast is cut into many pieces, an all-to-all is ``pairwise``.

    gloo's broadcast is its tree.
    """
    return collective.steps * link.alpha_s + collective.traffic_bytes * link.beta_s


def tree(collective: Collective, link: AlphaBeta) -> float:
    """Compute the seconds by doubling: few steps, whole messages where all ranks need all of it.

    ``CdmppError`` for an all-to-all, which has no tree here.
    """
    kind, rounds = collective.runs_as.kind, math.ceil(math.log2(collective.ranks))
    if kind == "all_to_all":
        raise CdmppError("an all_to_all has no tree: take pairwise")
    if kind in ("all_gather", "reduce_scatter"):
        return rounds * link.alpha_s + collective.traffic_bytes * link.beta_s
    return rounds * link.seconds(collective.bytes)


def pairwise(collective: Collective, link: AlphaBeta) -> float:
    """Compute the seconds where each rank deals with one other at a time: an all-to-all, a send, or a gather of all."""
    if collective.runs_as.kind in ("all_reduce", "broadcast"):
        raise CdmppError(f"a {collective.runs_as.kind} is not run in pairs: take ring or tree")
    return ring(collective, link)


def best(collective: Collective, link: AlphaBeta) -> float:
    """Compute the seconds of the faster of ring and tree."""
    ways = [ring] if collective.runs_as.kind in ("all_to_all", "send_recv") else [ring, tree]
    return min(way(collective, link) for way in ways)


def hierarchical(collective: Collective, nodes: int, inside: AlphaBeta, between: AlphaBeta) -> float:
    """Compute the seconds where nodes first act inside, then rank i of each node with the ranks i of the others.

    ``between`` is what one rank gets of the links between nodes. With one node this is ``ring``.
    """
    return sum(
        ring(part, link) for part, link in ((p, between if far else inside) for p, far in parts(collective, nodes))
    )


def around_nodes(inside: AlphaBeta, between: AlphaBeta, ranks: int, nodes: int) -> AlphaBeta:
    """Return what each message takes of one ring through all ranks, node after node, as NCCL's.

    Every piece passes all hops of the ring, so that start-ups add up hop by hop: two kinds of them, in proportion. All
    pieces pass the slowest hop, whose bandwidth counts. ``CdmppError`` where nodes do not hold equally many ranks.
    """
    if nodes < 1 or ranks % nodes:
        raise CdmppError(f"{ranks} ranks do not fill {nodes} nodes evenly: take a divisor")
    if nodes == 1:
        return inside
    far = nodes / ranks
    return AlphaBeta(far * between.alpha_s + (1.0 - far) * inside.alpha_s, max(inside.beta_s, between.beta_s))


def parts(collective: Collective, nodes: int) -> list[tuple[Collective, bool]]:
    """List the collectives that make up a hierarchical one, one after the other, and whether each is between nodes.

    ``CdmppError`` where the nodes do not hold equally many ranks.
    """
    whole = collective.runs_as
    if nodes < 1 or whole.ranks % nodes:
        raise CdmppError(f"{whole.ranks} ranks do not fill {nodes} nodes evenly: take a divisor")
    local, kind = whole.ranks // nodes, whole.kind
    if nodes == 1:
        return [(whole, False)]
    if local == 1:
        return [(whole, True)]
    share = max(whole.bytes // local, 1)
    inside = {
        name: (replace(whole, kind=name, ranks=local), False) for name in ("reduce_scatter", "all_gather", "broadcast")
    }
    across = (replace(whole, bytes=share, ranks=nodes), True)
    if kind == "all_reduce":
        return [inside["reduce_scatter"], across, inside["all_gather"]]
    if kind == "all_gather":
        return [across, inside["all_gather"]]
    if kind == "reduce_scatter":
        return [inside["reduce_scatter"], across]
    if kind == "broadcast":
        return [(replace(whole, ranks=nodes), True), inside["broadcast"]]
    near = max(whole.bytes // nodes, 1)
    return [(replace(whole, bytes=near, ranks=local), False), (replace(whole, ranks=nodes), True)]


def server_traffic_bytes(n_bytes: float, workers: int, servers: int, colocated: bool = True) -> float:
    """Count the bytes one way on the busiest link while ``workers`` push gradients and pull parameters.

    Each server holds an equal share. Where ``colocated``, servers run on workers, whose own share stays at home; N
    servers on N ranks then move 2 (N - 1) / N of the bytes, as a ring does.
    """
    if servers < 1 or workers < 1 or (colocated and servers > workers):
        raise CdmppError(f"{servers} servers for {workers} workers: expected at least one, on workers at most as many")
    share, away = n_bytes / servers, workers - 1 if colocated else workers
    worker = n_bytes if servers < workers or not colocated else n_bytes - share
    return 2 * max(away * share, worker if away else 0.0)


def parameter_server(collective: Collective, servers: int, link: AlphaBeta, colocated: bool = True) -> float:
    """Compute the seconds of an all-reduce by push and pull; ``CdmppError`` for another kind."""
    if collective.kind != "all_reduce":
        raise CdmppError(f"parameter servers stand for an all_reduce, given {collective.kind}")
    moved = server_traffic_bytes(collective.bytes, collective.ranks, servers, colocated)
    return (2 * link.alpha_s if moved else 0.0) + moved * link.beta_s
