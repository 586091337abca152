"""Closed forms of a step on several ranks: communication all in the open, or all hidden. Baselines of the replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdmpp.collectives.algorithms import server_traffic_bytes
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.fabric import Fabric
from cdmpp.simulate.engine import simulate
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.rank_tasks import step_ends, step_tasks
from cdmpp.steps.scheme import Scheme
from cdmpp.steps.work import RankWork


def no_overlap_s(works: Sequence[RankWork], scheme: Scheme, fabric: Fabric) -> float:
    """Seconds of a step: the rank that computes longest, then all communication."""
    return compute_s(works, scheme, fabric) + communication_s(works, scheme, fabric)


def full_overlap_s(works: Sequence[RankWork], scheme: Scheme, fabric: Fabric) -> float:
    """Seconds of a step: the longer of computing and communication."""
    return max(compute_s(works, scheme, fabric), communication_s(works, scheme, fabric))


def alone_s(works: Sequence[RankWork], fabric: Fabric) -> float:
    """Seconds of the slowest rank by itself: it updates all parameters, and exchanges nothing."""
    return _slowest_s([work.cut_over(1) for work in works], fabric)


def compute_s(works: Sequence[RankWork], scheme: Scheme, fabric: Fabric) -> float:
    """Seconds that the slowest rank computes, with its gaps and nobody to wait for."""
    return _slowest_s([work.cut_over(scheme.shards(len(works))) for work in works], fabric)


def communication_s(works: Sequence[RankWork], scheme: Scheme, fabric: Fabric) -> float:
    """Seconds of all exchanges: collectives one after the other; parameter servers as in ``algorithms``."""
    if len(works) == 1:
        return 0.0
    exchanges = scheme.exchanges(works)
    pushed = [exchange for exchange in exchanges if exchange.kind == "push_pull"]
    collectives = [
        Collective(exchange.kind, exchange.bytes, fabric.ranks, fabric.backend)
        for exchange in exchanges
        if exchange.kind != "push_pull"
    ]
    return sum(fabric.whole(collective).latency_s for collective in collectives) + _served_s(pushed, fabric)


def _slowest_s(works: Sequence[RankWork], fabric: Fabric) -> float:
    """Of what differs; each by itself."""
    different = {(work.operations, work.start_s): work for work in works}.values()
    ends = (step_ends(simulate(step_tasks([replace(work, rank=0)], (), fabric, steps=2))) for work in different)
    return max(second_s - first_s for first_s, second_s in ends)


def _served_s(exchanges: Sequence[Exchange], fabric: Fabric) -> float:
    """Bytes as in ``algorithms.parameter_server``, by the message between the ranks that are farthest apart.

    From one rank to another goes one message at a time: pushes, and where both have a server as many pulls.
    """
    if not exchanges:
        return 0.0
    by_server = [[one for one in exchanges if one.server == server] for server in {one.server for one in exchanges}]
    longest = max(exchange.bytes for exchange in exchanges)
    latency_s, flow = fabric.message(0, fabric.ranks - 1, longest)
    beta_s = flow.bytes / min(fabric.rates[link] for link in flow.links) / longest
    moved = server_traffic_bytes(sum(exchange.bytes for exchange in exchanges), fabric.ranks, len(by_server))
    adds_s = max(sum(one.sum_s for one in own) for own in by_server)
    most = max(map(len, by_server))
    return (2 * most if len(by_server) > 1 else most + 1) * latency_s + moved * beta_s + adds_s
