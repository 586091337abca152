"""Closed forms of a step on several ranks: communication all in the open, or all hidden. Baselines of the replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdmpp.collectives.topology import Topology
from cdmpp.simulate.engine import simulate
from cdmpp.steps.derived import derived
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.exchange_costs import streams_of
from cdmpp.steps.keys import Stream
from cdmpp.steps.step_graph import HOST_COPY, StepGraph
from cdmpp.steps.tasks import step_ends_s, step_tasks
from cdmpp.steps.transforms.scale import shard_update


def alone_s(graph: StepGraph) -> float:
    """Compute the seconds of the slowest rank by itself: it updates all parameters, and exchanges nothing."""
    return _slowest_s(shard_update(graph, 1))


def computed_s(graph: StepGraph, topology: Topology) -> float:
    """Compute the seconds of a step whose exchanges and copies to and from the host take no time.

    Ranks of a pipeline still wait for each other.
    """
    graph = _without_copies(graph)
    return _together_s(graph, topology.free()) if _has_messages(graph) else _slowest_s(graph)


def exchanged_s(graph: StepGraph, topology: Topology) -> tuple[float, float]:
    """Compute the least and the most seconds that all exchanges of the rank that has most take by themselves.

    The most are those of all messages that wait for each other, if these take longer: a batch passes all stages of a
    pipeline, and each rank has the messages to and from its neighbours alone.

    Collectives of one group run one after the other: with one group both are the same. Messages of parameter servers
    take at least what the busiest link, pair of ranks or server has to do, and at most as long as one message at a
    time. Copies to and from the host count as exchanges of their rank, each way on a stream of its own.
    """
    exchanges = graph.exchanges
    pushed = [exchange for exchange in exchanges if exchange.kind == "push_pull"]
    of_stream, of_rank = dict[Stream, float](), dict[int, float]()
    for one in exchanges:
        if one.kind != "push_pull":
            seconds = topology.cost(one.collective(topology.backend), one.participants).latency_s
            for stream in streams_of(one, topology.ranks):
                of_stream[stream] = of_stream.get(stream, 0.0) + seconds
            for rank in one.after:
                of_rank[rank] = of_rank.get(rank, 0.0) + seconds
    for own in graph.ranks:
        for op in (op for op in own.ops if op.kind == HOST_COPY):
            stream = Stream(own.rank, op.stream)
            of_stream[stream] = of_stream.get(stream, 0.0) + op.duration_s
            of_rank[own.rank] = of_rank.get(own.rank, 0.0) + op.duration_s
    least_s, most_s = _served_s(pushed, topology)
    chained_s = _together_s(_without_computing(graph), topology) if _has_messages(graph) else 0.0
    most_s += max(chained_s, *of_rank.values(), 0.0)
    return max(of_stream.values(), default=0.0) + least_s, most_s


def _has_messages(graph: StepGraph) -> bool:
    return any(one.kind == "send_recv" for one in graph.exchanges)


def _together_s(graph: StepGraph, topology: Topology) -> float:
    """Seconds of a step of all ranks in steady state."""
    ends = step_ends_s(simulate(step_tasks(graph, topology, steps=2), rates=topology.rates), len(graph.ranks), 2)
    return ends[1] - ends[0]


def _without_copies(graph: StepGraph) -> StepGraph:
    """The same step with copies to and from the host that take no time."""
    if not any(op.kind == HOST_COPY for rank in graph.ranks for op in rank.ops):
        return graph
    ranks = (
        derived(one, ops=tuple(derived(op, duration_s=0.0) if op.kind == HOST_COPY else op for op in one.ops))
        for one in graph.ranks
    )
    return replace(graph, ranks=tuple(ranks))


def _without_computing(graph: StepGraph) -> StepGraph:
    """The same exchanges between ops that take no time."""
    still = {"duration_s": 0.0, "gap_s": 0.0, "delay_s": 0.0}
    ranks = (
        derived(one, ops=tuple(derived(op, **still) for op in one.ops), start_s=0.0, tail_s=0.0) for one in graph.ranks
    )
    return replace(graph, ranks=tuple(ranks))


def _slowest_s(graph: StepGraph) -> float:
    """Seconds of the slowest rank by itself; equal ranks are simulated once."""
    different = {(rank.ops, rank.start_s, rank.tail_s): rank for rank in graph.ranks}.values()
    ends = (step_ends_s(simulate(step_tasks(StepGraph((replace(rank, rank=0),)), steps=2)), 1, 2) for rank in different)
    return max(second_s - first_s for first_s, second_s in ends)


def _served_s(exchanges: Sequence[Exchange], topology: Topology) -> tuple[float, float]:
    """Least and most seconds of pushes, sums and pulls, each way by the parts that each server has.

    While any message is under way, one is in its latency or one link is full: all of them never take longer than one
    after the other.
    """
    busy_s, most_s = dict[object, float](), 0.0
    for one in exchanges:
        busy_s[one.server] = busy_s.get(one.server, 0.0) + one.sum_s
        most_s += one.sum_s
        others = [rank for rank in one.ranks if rank != one.server]
        for pair in (pair for rank in others for pair in ((rank, one.server), (one.server, rank))):
            latency_s, flow = topology.message(*pair, one.bytes)
            links_s = {link: flow.bytes / topology.rates[link] for link in flow.links}
            alone_s = latency_s + max(links_s.values())
            for key, seconds in ((pair, alone_s), *links_s.items()):
                busy_s[key] = busy_s.get(key, 0.0) + seconds
            most_s += alone_s
    return max(busy_s.values(), default=0.0), most_s
