"""One training step on several ranks, from what each computes, a parallel strategy and a topology."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError
from cdmpp.network.training_step import PHASES
from cdmpp.simulate.intervals import Interval, length_s, union, without
from cdmpp.simulate.timeline import Span
from cdmpp.steps.bounds import alone_s, computed_s, exchanged_s
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.keys import Stream
from cdmpp.steps.rank_spans import rank_spans
from cdmpp.steps.replay import Replay, replay
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.step_replay import RankShare, StepReplay
from cdmpp.steps.strategy import Strategy
from cdmpp.steps.synchrony import Synchrony

_HOST = ("start", "delay", "end")


def replay_strategy(
    graph: StepGraph, strategy: Strategy, topology: Topology, granularity: str = "collective",
    synchrony: Synchrony | None = None,
) -> StepReplay:  # fmt: skip
    """Replay one training step in steady state (after the replayer of dPRO, MLSys'22, section 4).

    Args:
        graph: what ranks compute; they may differ in speed, but not in what they exchange.
        strategy: how ranks share the work.
        topology: what they exchange over.
        granularity: as of ``replay``.
        synchrony: as of ``replay``.

    Raises:
        CdmppError: ranks that do not match each other or the topology, and as of ``replay``.
    """
    count = len(graph.ranks)
    if count != topology.ranks:
        raise CdmppError(
            f"a step of {count} ranks on {topology.ranks} ranks of {topology.name}: give one RankGraph for each"
        )
    return replay_exchanges(strategy.apply(graph), strategy.name, topology, alone_s(graph), granularity, synchrony)


def replay_exchanges(
    graph: StepGraph, name: str, topology: Topology, alone_s: float, granularity: str = "collective",
    synchrony: Synchrony | None = None, replicas: int | None = None,
) -> StepReplay:  # fmt: skip
    """Replay one training step with the exchanges that it has, and account for its time.

    Args:
        graph: all ranks of the job, or one each of those that are alike.
        name: of the strategy, for a reader.
        topology: the links of the job.
        alone_s: seconds of one device by itself for the examples of one replica, undivided and not slowed.
        granularity: as of ``replay``.
        synchrony: as of ``replay``.
        replicas: ranks, or groups of ranks that divide the model, with examples of their own; None: all ranks.

    Raises:
        CdmppError: as of ``replay``.
    """
    made = replay(graph, topology, granularity, synchrony)
    exchanges = graph.exchanges
    busy_s, (least_s, most_s) = computed_s(graph, topology), exchanged_s(graph, topology)
    return StepReplay(
        name,
        topology.name,
        topology.backend,
        granularity,
        made.step_s,
        tuple(_share(rank, spans, made.window_s) for rank, spans in enumerate(_by_rank(made))),
        made.critical_s,
        rank_spans(made),
        len(exchanges),
        _sent_bytes(exchanges, topology),
        alone_s,
        busy_s + most_s,
        max(busy_s, least_s),
        exchange_warnings(exchanges, topology),
        topology.ranks,
        topology.ranks if replicas is None else replicas,
        graph=graph,
    )


def _by_rank(made: Replay) -> list[list[Span]]:
    """Spans on any stream of each rank, of all steps."""
    found: list[list[Span]] = [[] for _ in made.graph.ranks]
    for span in made.timeline.spans.values():
        for rank in {stream.rank for stream in span.task.resources if isinstance(stream, Stream)}:
            found[rank].append(span)
    return found


def _share(rank: int, spans: Sequence[Span], window: Interval) -> RankShare:
    compute, host, exchanged = list[Interval](), list[Interval](), list[Interval]()
    phase_s = dict.fromkeys(PHASES, 0.0)
    for span in spans:
        begin_s, end_s = max(span.start_s, window[0]), min(span.end_s, window[1])
        kind = span.task.label
        if kind in PHASES:
            compute.append((begin_s, end_s))
            host.append((max(span.end_s, window[0]), min(span.end_s + span.task.gap_s, window[1])))
            phase_s[kind] += max(0.0, end_s - begin_s)
        else:
            (host if kind in _HOST else exchanged).append((begin_s, end_s))
    compute, host, exchanged = union(compute), union(host), union(exchanged)
    gaps = without(host, compute)
    busy = union([*compute, *gaps])
    exposed = without(exchanged, busy)
    left_s = window[1] - window[0] - length_s(busy) - length_s(exposed)
    return RankShare(
        rank, phase_s, length_s(compute), length_s(gaps), length_s(exchanged), length_s(exposed), max(0.0, left_s)
    )


def _sent_bytes(exchanges: Sequence[Exchange], topology: Topology) -> float:
    """Bytes that the rank that sends most must send."""
    sent: dict[int, float] = {}
    for one in exchanges:
        if one.kind == "push_pull":
            each: dict[int, float] = {
                rank: one.bytes * (len(one.after) - 1 if rank == one.server else 1) for rank in one.after
            }
        else:
            senders = one.peers[:1] if one.peers else one.ranks
            each = dict.fromkeys(senders, one.collective(topology.backend).traffic_bytes)
        for rank, size in each.items():
            sent[rank] = sent.get(rank, 0.0) + size
    return max(sent.values(), default=0.0)


def exchange_warnings(exchanges: Sequence[Exchange], topology: Topology) -> tuple[str, ...]:
    """Return warnings of the topology and of its model, at the largest exchange of each kind and shape of group."""
    ordered = sorted(exchanges, key=lambda one: one.bytes)
    largest = {(one.kind, topology.shape(one.participants)): one for one in ordered}
    estimates = [
        topology.near(Collective("send_recv", one.bytes, 2, topology.backend))
        if one.kind == "push_pull"
        else topology.cost(one.collective(topology.backend), one.participants)
        for one in largest.values()
    ]
    return tuple(dict.fromkeys([*topology.warnings, *(flag for one in estimates for flag in one.flags)]))
