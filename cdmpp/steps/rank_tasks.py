"""The global data-flow graph: steps of all ranks, one after the other, with what they exchange."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.collectives.fabric import Fabric
from cdmpp.simulate.task import Task
from cdmpp.simulate.timeline import Timeline
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.exchange_tasks import Names, carried, stream_of
from cdmpp.steps.work import RankWork

HOST = "start"
"""Label of what a step takes once."""


def step_tasks(
    works: Sequence[RankWork],
    exchanges: Sequence[Exchange],
    fabric: Fabric,
    steps: int = 1,
    detail: str = "whole",
) -> list[Task]:
    """Tasks of ``steps`` steps, whose names begin with the number of their step, from 0 on.

    A rank starts its next step when all of its own work and exchanges are done.
    """
    tasks = list[Task]()
    ends: Names = ((),) * len(works)
    for number in range(steps):
        made, ends = _step(f"{number}", works, exchanges, fabric, detail, ends)
        tasks += made
    return tasks


def step_of(name: str) -> int:
    """Of a task: the number of its step."""
    return int(name.partition(" ")[0])


def step_ends(timeline: Timeline) -> list[float]:
    """When the last task of each step has ended, in seconds."""
    ends: dict[int, float] = {}
    for name, span in timeline.spans.items():
        number = step_of(name)
        ends[number] = max(ends.get(number, 0.0), span.end_s)
    return [ends[number] for number in sorted(ends)]


def title(name: str) -> str:
    """Of a task, for a reader: its name without the step and the rank."""
    return name.split(" ", 2)[2]


def _step(
    step: str, works: Sequence[RankWork], exchanges: Sequence[Exchange], fabric: Fabric, detail: str, before: Names
) -> tuple[list[Task], Names]:
    """One step of all ranks, and of each the tasks after which its next one may start."""
    tasks = list[Task]()
    previous: Names = ((),) * len(works)
    waits: list[dict[int, list[str]]] = [{} for _ in works]
    done: list[list[str]] = [[] for _ in works]
    for exchange in exchanges:
        own = tuple((_name(step, work, place),) for work, place in zip(works, exchange.after, strict=True))
        is_server = exchange.kind == "push_pull"
        arrive = own if is_server else tuple((*a, *b) for a, b in zip(own, previous, strict=True))
        made = carried(f"{step} - {exchange.name}", exchange, fabric, arrive, detail)
        tasks += made.tasks
        previous = previous if is_server else made.ends
        for rank, names in enumerate(made.ends):
            done[rank] += names
            if exchange.before:
                waits[rank].setdefault(exchange.before[rank], []).extend(names)
    ranks = [_rank(step, work, waits[i], done[i], before[i]) for i, work in enumerate(works)]
    return [*(task for own, _ in ranks for task in own), *tasks], tuple(ends for _, ends in ranks)


def _rank(
    step: str, work: RankWork, waits: dict[int, list[str]], done: list[str], before: tuple[str, ...]
) -> tuple[list[Task], tuple[str, ...]]:
    """The same of one rank, without the tasks of exchanges: ``waits`` (by place) and ``done`` are their ends."""
    streams = tuple(dict.fromkeys(stream_of(work.rank, one.stream) for one in work.operations))
    begin = _name(step, work, START)
    tasks = [Task(begin, work.start_s, streams, before, label=HOST)]
    last, updating = dict.fromkeys(streams, begin), set[str]()
    for place, operation in enumerate(work.operations):
        stream, name = stream_of(work.rank, operation.stream), _name(step, work, place)
        after = [last[stream], *(_name(step, work, other) for other in operation.after), *waits.get(place, ())]
        if operation.phase == "update" and stream not in updating:
            after += done
            updating.add(stream)
        last[stream] = name
        tasks.append(
            Task(name, operation.duration_s, (stream,), tuple(after), gap_s=operation.gap_s, label=operation.phase)
        )
    return tasks, tuple(dict.fromkeys((*last.values(), *done)))


def _name(step: str, work: RankWork, place: int) -> str:
    what = HOST if place == START else f"{work.operations[place].name} #{place}"
    return f"{step} {work.rank} {what}"
