"""An exchange as tasks: as it was measured, a whole collective, the steps of its rings, or pushes to a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cdmpp.collectives.collective import steps
from cdmpp.collectives.ring_stage import RingStage, ring_stages
from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError, DataError
from cdmpp.simulate.flow import Flow
from cdmpp.simulate.task import Task
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.exchange_costs import ExchangeCosts, streams_of
from cdmpp.steps.keys import ALL_RANKS, Stream, TaskKey

GRANULARITIES = ("collective", "ring step")
MOST_RING_RANKS = 16
"""Ranks of which ring steps are simulated; the tasks of a ring grow with the square of its ranks."""
_WORD_S = 1e-9
"""Seconds by which a receiver's word is behind it: they decide which of two messages goes first."""
_BUFFER = 4 << 20
"""Bytes that the kernel's socket takes from a sender: the default of Linux, ``net.ipv4.tcp_wmem``."""
Keys = Mapping[int, tuple[TaskKey, ...]]
"""Rank -> keys of tasks."""


@dataclass(frozen=True)
class Carried:
    """These are the tasks of one exchange."""

    tasks: tuple[Task, ...]
    ends: Keys
    """The tasks after which each rank has what it needs."""


def check_granularity(granularity: str, ranks: int) -> None:
    """Raise ``CdmppError`` for an unknown granularity, and for ring steps of too many ranks."""
    if granularity not in GRANULARITIES:
        raise CdmppError(f"unknown granularity {granularity!r}: expected one of {', '.join(GRANULARITIES)}")
    if granularity == "ring step" and ranks > MOST_RING_RANKS:
        raise CdmppError(f"ring steps of {ranks} ranks: expected at most {MOST_RING_RANKS}, take whole collectives")


def carried(
    step: int,
    place: int,
    exchange: Exchange,
    launched: Keys,
    costs: ExchangeCosts | None,
    granularity: str = "collective",
    workers: int = 1,
) -> Carried:
    """Make the tasks of one exchange.

    Args:
        step: number of the step.
        place: place of the exchange in its step graph.
        exchange: what is exchanged.
        launched: the tasks after which each rank takes part.
        costs: what an exchange that was not measured takes.
        granularity: one of ``GRANULARITIES``.
        workers: measured exchanges that a rank runs at a time.

    Raises:
        DataError: an exchange that was not measured, and no costs.
    """
    if exchange.wire_s is not None:
        return _measured(step, place, exchange, exchange.wire_s, launched, workers)
    if costs is None:
        raise DataError(f"nobody measured {exchange.title}, and there is no topology to carry it: give one")
    topology = costs.topology
    if exchange.kind == "push_pull":
        return _pushed(step, place, exchange, launched, topology)
    if granularity == "ring step" and exchange.kind != "send_recv":
        found = _tree if exchange.collective(topology.backend).is_tree else _rings
        return found(step, place, exchange, launched, topology)
    latency_s, flow = costs.of(exchange)
    key = TaskKey(step, "exchange", ALL_RANKS, place)
    task = Task(key, latency_s, costs.streams(exchange), _joined(launched.values()), label=exchange.kind, flow=flow)
    if exchange.kind == "send_recv" and len(exchange.after) == 2 and topology.backend == "gloo":
        return _buffered(task, exchange.peers or (exchange.ranks[0], exchange.ranks[-1]), exchange.bytes, launched)
    return Carried((task,), dict.fromkeys(exchange.after, (key,)))


def _buffered(message: Task, peers: tuple[int, int], n_bytes: int, launched: Keys) -> Carried:
    """A message over gloo, which the sender is rid of once the receiver's word is there, if a socket's buffer holds it.

    Messages between two ranks take turns, either way. Of two for which both are there, that of the rank that came last
    goes first: the other rank's word was there already, and its own stands behind what it sends.
    """
    sender, receiver = peers
    key: TaskKey = message.key  # type: ignore[assignment]
    word, begun = key._replace(kind="word", rank=receiver), key._replace(kind="begun", rank=sender)
    streams = (*message.resources, _pair(peers))
    tasks = (
        Task(word, _WORD_S, (), launched[receiver], label="arrival"),
        Task(begun, 0.0, streams, _joined((launched[sender], (word,))), label="arrival"),
        replace(message, resources=streams, after=(begun,), priority=-1),  # nothing comes between
    )
    return Carried(tasks, {sender: (begun if n_bytes <= _BUFFER else key,), receiver: (key,)})


def _pair(peers: tuple[int, int]) -> Stream:
    """The stream of all messages between two ranks over gloo, either way, one at a time.

    A message moves when the receiver has told the sender that it is there, and that word stands behind what the
    receiver sends itself.
    """
    return Stream(min(peers), f"messages with {max(peers)}")


def links_of(ranks: Sequence[int], peers: tuple[int, int] | None) -> tuple[str, ...]:
    """List the ways out of and into each rank that a measured exchange crosses; a message goes one way only."""
    if peers is not None:
        return f"out {peers[0]}", f"in {peers[1]}"
    return tuple(f"{way} {rank}" for rank in ranks for way in ("out", "in"))


def measured_rates(exchanges: Sequence[Exchange]) -> dict[str, float]:
    """Give rate 1 to all links of measured exchanges: a second with the link for itself is the unit of a flow."""
    return {link: 1.0 for one in exchanges if one.wire_s is not None for link in links_of(one.ranks, one.peers)}


def _measured(step: int, place: int, exchange: Exchange, wire_s: float, launched: Keys, workers: int) -> Carried:
    """One task over the links of its ranks, from the latest arrival on; the last of them ends it for all.

    A message takes no worker. It waits for those before it between the same two ranks, either way.
    """
    key, peers = TaskKey(step, "exchange", ALL_RANKS, place), exchange.peers
    lags_s = dict(exchange.lag_s)
    if peers is not None:
        lags_s[peers[1]] = lags_s.get(peers[1], 0.0) + _WORD_S
    arrivals = [
        Task(TaskKey(step, "arrival", rank, place), lags_s.get(rank, 0.0), (), launched[rank], label="arrival")
        for rank in exchange.ranks
    ]
    slots: tuple[Stream, ...] = ()
    if peers is not None:
        slots = (_pair(peers),)
    elif exchange.kind != "send_recv":
        slots = tuple(Stream(rank, f"exchange {place % workers}") for rank in exchange.ranks)
    flow = Flow(wire_s, links_of(exchange.ranks, peers))
    after = tuple(task.key for task in arrivals)
    task = Task(key, 0.0, slots, after, step, label=exchange.kind, flow=flow)
    return Carried((*arrivals, task), dict.fromkeys(exchange.ranks, (key,)))


def _rings(step: int, place: int, exchange: Exchange, launched: Keys, topology: Topology) -> Carried:
    """Stage after stage, in each all groups at once. At each ring step a rank sends to the next one what it has got."""
    tasks, ends, streams = list[Task](), dict(launched), _own_streams(exchange, topology)
    for number, stage in enumerate(ring_stages(topology, exchange.collective(topology.backend), exchange.participants)):
        for group in stage.groups:
            made = _ring(partial(_ring_key, step, place, number), stage, group, topology, ends, streams)
            tasks += made.tasks
            ends |= made.ends
    return Carried(tuple(tasks), ends)


def _own_streams(exchange: Exchange, topology: Topology) -> dict[int, Stream]:
    """Rank -> its stream; ``CdmppError`` where ranks of the graph stand for more of the job, which have no streams."""
    if exchange.is_folded:
        raise CdmppError(
            f"ring steps of {exchange.title}: its ranks stand for {len(exchange.participants)} ranks of the job; "
            "take whole collectives, or a step of all ranks"
        )
    return {stream.rank: stream for stream in streams_of(exchange, topology.ranks)}


def _ring_key(step: int, place: int, stage: int, ring_step: int, rank: int) -> TaskKey:
    return TaskKey(step, "ring step", rank, place, (stage, ring_step))


def _ring(
    key: partial[TaskKey], stage: RingStage, group: Sequence[int], topology: Topology, launched: Keys,
    streams: Mapping[int, Stream],
) -> Carried:  # fmt: skip
    count, size = steps(stage.collective.kind, len(group)), len(group)
    pairs = [(rank, group[(place + 1) % size]) for place, rank in enumerate(group)]
    shares = [topology.share(stage.collective, count, [*pairs[p:], *pairs[:p]], stage.is_far) for p in range(size)]
    tasks = list[Task]()
    for ring_step in range(count):
        for place, rank in enumerate(group):
            before, following = group[place - 1], group[(place + 1) % size]
            if ring_step:
                after: tuple[TaskKey, ...] = tuple(key(ring_step - 1, one) for one in (before, rank))
            else:  # both ends must be there
                after = _joined((launched[rank], launched[following]))
            latency_s, flow = shares[place]
            label = stage.collective.kind
            tasks.append(Task(key(ring_step, rank), latency_s, (streams[rank],), after, label=label, flow=flow))
    last = [key(count - 1, rank) for rank in group]
    return Carried(tuple(tasks), {rank: (last[place - 1], last[place]) for place, rank in enumerate(group)})


def _tree(step: int, place: int, exchange: Exchange, launched: Keys, topology: Topology) -> Carried:
    """Whole messages, from the first to half of the ranks and from all that have it to half of those that are left."""
    tasks, ends, key = list[Task](), dict(launched), partial(_ring_key, step, place, 0)
    collective, group, streams = exchange.collective(topology.backend), exchange.ranks, _own_streams(exchange, topology)
    is_far = topology.shape(group).nodes > 1
    for round_, half in enumerate(2**power for power in reversed(range(collective.steps))):
        pairs = [(group[at], group[at + half]) for at in range(0, len(group) - half, 2 * half)]
        for number, (source, target) in enumerate(pairs):
            others = [*pairs[number:], *pairs[:number]]
            latency_s, flow = topology.share(collective, collective.steps, others, is_far)
            after, resources = _joined((ends[source], launched[target])), (streams[source],)
            sent = key(round_, source)
            tasks.append(Task(sent, latency_s, resources, after, label=collective.kind, flow=flow))
            ends[source] = ends[target] = (sent,)
    return Carried(tuple(tasks), ends)


def _pushed(step: int, place: int, exchange: Exchange, launched: Keys, topology: Topology) -> Carried:
    """Each rank pushes, the server adds up what it has when the last is there, each rank pulls.

    The server's own rank sends it nothing over a link. From one rank to another goes one message at a time.
    """
    if exchange.is_folded:
        raise CdmppError(f"{exchange.title} in a folded step: servers need all {len(exchange.members)} ranks")
    server = exchange.server
    total = TaskKey(step, "sum", server, place)
    pushes, pulls, pushed = list[Task](), list[Task](), list[TaskKey]()
    ends = {server: (total,)}
    for rank in exchange.ranks:
        if rank == server:
            continue
        for tasks, kind, source, target, after in (
            (pushes, "push", rank, server, launched[rank]),
            (pulls, "pull", server, rank, (total,)),
        ):
            latency_s, flow = topology.message(source, target, exchange.bytes)
            resources = Stream(source, f"to {target}"), Stream(target, f"from {source}")
            key = TaskKey(step, kind, rank, place)
            tasks.append(Task(key, latency_s, resources, after, label=kind, flow=flow))
        pushed.append(TaskKey(step, "push", rank, place))
        ends[rank] = (TaskKey(step, "pull", rank, place),)
    ready = _joined((launched[server], pushed))
    added = Task(total, exchange.sum_s, (Stream(server, "server"),), ready, label="sum")
    return Carried((*pushes, added, *pulls), ends)


def _joined(keys: Iterable[Iterable[TaskKey]]) -> tuple[TaskKey, ...]:
    """Join the keys: each once, in order."""
    return tuple(dict.fromkeys(key for some in keys for key in some))
