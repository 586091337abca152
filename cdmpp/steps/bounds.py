"""Closed forms of a step on several ranks: communication all in the open, or all hidden. Baselines of the replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdmpp.collectives.algorithms import server_traffic_bytes
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.topology import Topology
from cdmpp.simulate.engine import simulate
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.strategy import Strategy
from cdmpp.steps.tasks import step_ends_s, step_tasks
from cdmpp.steps.transforms.scale import shard_update


def no_overlap_s(graph: StepGraph, strategy: Strategy, topology: Topology) -> float:
    """Compute the seconds of a step without overlap: the rank that computes longest, then all communication."""
    return compute_s(graph, strategy) + communication_s(graph, strategy, topology)


def full_overlap_s(graph: StepGraph, strategy: Strategy, topology: Topology) -> float:
    """Compute the seconds of a step with full overlap: the longer of computing and communication."""
    return max(compute_s(graph, strategy), communication_s(graph, strategy, topology))


def alone_s(graph: StepGraph) -> float:
    """Compute the seconds of the slowest rank by itself: it updates all parameters, and exchanges nothing."""
    return _slowest_s(shard_update(graph, 1))


def compute_s(graph: StepGraph, strategy: Strategy) -> float:
    """Compute the seconds that the slowest rank computes, with its gaps and nobody to wait for."""
    return _slowest_s(shard_update(graph, strategy.shards(len(graph.ranks))))


def communication_s(graph: StepGraph, strategy: Strategy, topology: Topology) -> float:
    """Sum the seconds of all exchanges: collectives one after the other; parameter servers as in ``algorithms``."""
    if len(graph.ranks) == 1:
        return 0.0
    exchanges = strategy.exchanges(graph)
    pushed = [exchange for exchange in exchanges if exchange.kind == "push_pull"]
    collectives = [
        Collective(exchange.kind, exchange.bytes, topology.ranks, topology.backend)
        for exchange in exchanges
        if exchange.kind != "push_pull"
    ]
    return sum(topology.whole(collective).latency_s for collective in collectives) + _served_s(pushed, topology)


def _slowest_s(graph: StepGraph) -> float:
    """Seconds of the slowest rank by itself; equal ranks are simulated once."""
    different = {(rank.ops, rank.start_s, rank.tail_s): rank for rank in graph.ranks}.values()
    ends = (step_ends_s(simulate(step_tasks(StepGraph((replace(rank, rank=0),)), steps=2))) for rank in different)
    return max(second_s - first_s for first_s, second_s in ends)


def _served_s(exchanges: Sequence[Exchange], topology: Topology) -> float:
    """Bytes as in ``algorithms.parameter_server``, by the message between the ranks that are farthest apart.

    From one rank to another goes one message at a time: pushes, and where both have a server as many pulls.
    """
    if not exchanges:
        return 0.0
    by_server = [[one for one in exchanges if one.server == server] for server in {one.server for one in exchanges}]
    longest = max(exchange.bytes for exchange in exchanges)
    latency_s, flow = topology.message(0, topology.ranks - 1, longest)
    beta_s = flow.bytes / min(topology.rates[link] for link in flow.links) / longest
    moved = server_traffic_bytes(sum(exchange.bytes for exchange in exchanges), topology.ranks, len(by_server))
    adds_s = max(sum(one.sum_s for one in own) for own in by_server)
    most = max(map(len, by_server))
    return (2 * most if len(by_server) > 1 else most + 1) * latency_s + moved * beta_s + adds_s
