"""An exchange as tasks: whole on all ranks at once, in the steps of its rings, or as pushes and pulls of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from cdmpp.collectives.collective import Collective, steps
from cdmpp.collectives.fabric import Fabric, Stage
from cdmpp.errors import CdmppError
from cdmpp.simulate.task import Task
from cdmpp.steps.exchange import Exchange

DETAILS = ("whole", "chunks")
MOST_IN_CHUNKS = 16
"""Ranks; the tasks of a ring grow with their square."""
COMMUNICATION = "communication"
"""The stream of a rank that carries collectives."""
Names = tuple[tuple[str, ...], ...]
"""Of each rank names of tasks."""


@dataclass(frozen=True)
class Carried:
    """The tasks of one exchange."""

    tasks: tuple[Task, ...]
    ends: Names
    """Of each rank the tasks after which it has what it needs."""


def stream_of(rank: int, stream: str) -> str:
    """Name of the resource."""
    return f"rank {rank} {stream}"


@cache
def place_of(resource: str) -> tuple[int, str]:
    """Rank and stream of a resource."""
    _, rank, stream = resource.split(" ", 2)
    return int(rank), stream


def check_detail(detail: str, ranks: int) -> None:
    """``CdmppError`` where there is no such detail, or there are too many ranks for it."""
    if detail not in DETAILS:
        raise CdmppError(f"unknown detail {detail!r}: expected one of {', '.join(DETAILS)}")
    if detail == "chunks" and ranks > MOST_IN_CHUNKS:
        raise CdmppError(f"chunks of {ranks} ranks: expected at most {MOST_IN_CHUNKS}, take whole collectives")


def carried(name: str, exchange: Exchange, fabric: Fabric, arrive: Names, detail: str) -> Carried:
    """Tasks of an exchange.

    Args:
        name: begins the names of all its tasks.
        exchange: what is exchanged.
        fabric: where.
        arrive: of each rank the tasks that it takes part after.
        detail: one of ``DETAILS``.
    """
    if exchange.kind == "push_pull":
        return _pushed(name, exchange, fabric, arrive)
    collective = Collective(exchange.kind, exchange.bytes, fabric.ranks, fabric.backend)
    if detail == "chunks":
        return _rings(name, collective, fabric, arrive)
    streams = tuple(stream_of(rank, COMMUNICATION) for rank in range(fabric.ranks))
    after = tuple(dict.fromkeys(task for own in arrive for task in own))
    task = Task(name, fabric.whole(collective).latency_s, streams, after, label=exchange.kind)
    return Carried((task,), ((name,),) * fabric.ranks)


def _rings(name: str, collective: Collective, fabric: Fabric, arrive: Names) -> Carried:
    """Stage after stage, in each all groups at once. At each step a rank sends to the next one what it has got."""
    tasks, ends = list[Task](), list(arrive)
    for number, stage in enumerate(fabric.stages(collective)):
        for group in stage.groups:
            made = _ring(f"{name}.{number}", stage, group, fabric, [ends[rank] for rank in group])
            tasks += made.tasks
            for rank, own in zip(group, made.ends, strict=True):
                ends[rank] = own
    return Carried(tuple(tasks), tuple(ends))


def _ring(name: str, stage: Stage, group: Sequence[int], fabric: Fabric, arrive: Sequence[tuple[str, ...]]) -> Carried:
    count, size = steps(stage.collective.kind, len(group)), len(group)
    pairs = [(rank, group[(place + 1) % size]) for place, rank in enumerate(group)]
    shares = [fabric.share(stage.collective, count, [*pairs[p:], *pairs[:p]], stage.is_far) for p in range(size)]
    tasks = list[Task]()
    for step in range(count):
        for place, rank in enumerate(group):
            before, following = (place - 1) % size, (place + 1) % size
            after: tuple[str, ...] = tuple(f"{name}.{step - 1}.{group[one]}" for one in (before, place))
            if not step:  # both ends must be there
                after = tuple(dict.fromkeys((*arrive[place], *arrive[following])))
            latency_s, flow = shares[place]
            resources = (stream_of(rank, COMMUNICATION),)
            kind = stage.collective.kind
            tasks.append(Task(f"{name}.{step}.{rank}", latency_s, resources, after, label=kind, flow=flow))
    last = [f"{name}.{count - 1}.{rank}" for rank in group]
    return Carried(tuple(tasks), tuple((last[place - 1], last[place]) for place in range(size)))


def _pushed(name: str, exchange: Exchange, fabric: Fabric, arrive: Names) -> Carried:
    """Each rank pushes, the server adds up what it has when the last is there, each rank pulls.

    The server's own rank sends it nothing over a link. From one rank to another goes one message at a time.
    """
    server, others = exchange.server, [rank for rank in range(fabric.ranks) if rank != exchange.server]
    pushes, pulls = list[Task](), list[Task]()
    for rank in others:
        for tasks, kind, source, target, after in (
            (pushes, "push", rank, server, arrive[rank]),
            (pulls, "pull", server, rank, (f"{name}.sum",)),
        ):
            latency_s, flow = fabric.message(source, target, exchange.bytes)
            resources = stream_of(source, f"to {target}"), stream_of(target, f"from {source}")
            tasks.append(Task(f"{name}.{kind}.{rank}", latency_s, resources, after, label=kind, flow=flow))
    ready = tuple(dict.fromkeys((*arrive[server], *(task.name for task in pushes))))
    total = Task(f"{name}.sum", exchange.sum_s, (stream_of(server, "server"),), ready, label="sum")
    ends = tuple((f"{name}.sum",) if rank == server else (f"{name}.pull.{rank}",) for rank in range(fabric.ranks))
    return Carried((*pushes, total, *pulls), ends)
