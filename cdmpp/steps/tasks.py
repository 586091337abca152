"""The simulated graph: steps of all ranks, one after the other, with what they exchange."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cdmpp.collectives.topology import Topology
from cdmpp.simulate.flow import Flow
from cdmpp.simulate.key import Key
from cdmpp.simulate.task import Task, check_tasks
from cdmpp.simulate.timeline import Timeline
from cdmpp.steps.derived import derived
from cdmpp.steps.exchange import START
from cdmpp.steps.exchange_costs import ExchangeCosts
from cdmpp.steps.exchange_tasks import carried
from cdmpp.steps.keys import Stream, TaskKey
from cdmpp.steps.step_graph import HOST_COPY, RankGraph, StepGraph
from cdmpp.steps.synchrony import Synchrony

STEPS, STEADY = 4, 2
"""Steps that are simulated, and the one that is reported: from the third on ranks have found their order, and those
that are ahead of others are in the next one."""


def step_tasks(
    graph: StepGraph, topology: Topology | None = None, granularity: str = "collective", steps: int = STEPS,
    synchrony: Synchrony | None = None,
) -> list[Task]:  # fmt: skip
    """Make tasks of ``steps`` steps, whose keys are ``TaskKey``.

    An exchange without a measured time starts after the one before it in its group has ended, a message after the one
    before it from the same sender to the same receiver. Pushes to servers do not.

    Args:
        graph: what ranks do.
        topology: what carries exchanges that were not measured.
        granularity: of collectives on a topology: ``collective`` or ``ring step``.
        steps: how many.
        synchrony: which exchanges updates and the end of a step wait for; None: those of their own step.

    Raises:
        DataError: an exchange that was not measured, and no topology.
    """
    costs = None if topology is None else ExchangeCosts.on(topology, graph.exchanges)
    awaited = [step if synchrony is None else synchrony.awaited_step(step) for step in range(steps)]
    if awaited == [*range(steps)] and all(one.wire_s is None for one in graph.exchanges):
        first = _step(0, 0, graph, costs, granularity)
        return [*first, *(task for step in range(1, steps) for task in _later(first, step))]
    tasks = list[Task]()
    for step, other in enumerate(awaited):
        tasks += _step(step, other, graph, costs, granularity)
    return tasks


def check_work(tasks: int, ranks: int) -> None:
    """Raise ``CdmppError`` where steps of this many tasks, those of all ranks together, are too many to simulate."""
    check_tasks(STEPS * tasks, f"replaying {STEPS} steps of {ranks:,} ranks", "take fewer ranks")


def step_ends_s(timeline: Timeline) -> list[float]:
    """Return the seconds at which the last rank has ended each step."""
    ends: dict[int, float] = {}
    for key, span in timeline.spans.items():
        if isinstance(key, TaskKey) and key.kind == "end":
            ends[key.step] = max(ends.get(key.step, 0.0), span.end_s)
    return [ends[step] for step in sorted(ends)]


def _later(first: Sequence[Task], step: int) -> Iterator[Task]:
    """Yield the tasks of a later step, which are those of the first one; a rank begins it when the one before ended."""
    keys: dict[Key, TaskKey] = {task.key: TaskKey(step, *task.key[1:]) for task in first}  # type: ignore[index,misc]
    for task in first:
        key = keys[task.key]
        after = tuple([keys[one] for one in task.after])
        yield derived(task, key=key, after=(TaskKey(step - 1, "end", key.rank, 0),) if key.kind == "start" else after)


def _step(
    step: int, awaited: int | None, graph: StepGraph, costs: ExchangeCosts | None, granularity: str
) -> list[Task]:
    """Tasks of one step. Its updates and its end wait for the exchanges of the step ``awaited``, if there is one."""
    exchanged = list[Task]()
    previous = dict[Stream, tuple[TaskKey, ...]]()
    collectives = defaultdict[int, list[tuple[int, tuple[TaskKey, ...]]]](list)
    waits: list[dict[int, list[TaskKey]]] = [{} for _ in graph.ranks]
    for place, one in enumerate(graph.exchanges):
        is_queued = one.wire_s is None and one.kind != "push_pull"
        streams = costs.streams(one) if is_queued and costs is not None else ()
        launched: dict[int, tuple[TaskKey, ...]] = {rank: (_op_key(step, rank, at),) for rank, at in one.after.items()}
        for stream in streams:
            launched[stream.rank] += previous.get(stream, ())
        if one.follows:
            for rank, at in one.after.items():
                launched[rank] += next((ends for begun, ends in reversed(collectives[rank]) if begun <= at), ())
        made = carried(step, place, one, launched, costs, granularity, graph.workers)
        exchanged += made.tasks
        previous |= {stream: tuple(made.ends[stream.rank]) for stream in streams}
        if one.kind not in ("send_recv", "push_pull"):
            for rank, at in one.after.items():
                collectives[rank].append((at, made.ends[rank]))
        for rank, places in one.before.items():
            for waiting in places:
                ends = made.ends[rank]
                if awaited != step and waiting in graph.ranks[rank].synchronized:
                    ends = () if awaited is None or awaited < 0 else tuple(k._replace(step=awaited) for k in ends)
                waits[rank].setdefault(waiting, []).extend(ends)
    computed = [_rank(step, rank, waits[rank.rank]) for rank in graph.ranks]
    if graph.processors:
        computed = [_sharing(tasks, name) for tasks, name in zip(computed, graph.processors, strict=True)]
    return [*(task for tasks in computed for task in tasks), *exchanged]


def _sharing(tasks: Sequence[Task], processor: str) -> list[Task]:
    """What a rank runs, as work on a processor: who else runs something there takes an equal part of it."""
    return [
        replace(task, duration=0.0, flow=Flow(task.duration, (processor,)))
        if isinstance(task.duration, float) and task.duration
        else task
        for task in tasks
    ]


def _rank(step: int, rank: RankGraph, waits: Mapping[int, list[TaskKey]]) -> list[Task]:
    """Tasks of one rank; ``waits``: place of an op -> tasks of exchanges that it waits for."""
    streams = {name: Stream(rank.rank, name) for name in rank.streams}
    start, end = _op_key(step, rank.rank, START), TaskKey(step, "end", rank.rank, 0)
    before = (end._replace(step=step - 1),) if step else ()
    tasks = [Task(start, rank.start_s, tuple(streams.values()), before, label="start")]
    last = dict.fromkeys(streams, start)
    for place, op in enumerate(rank.ops):
        key, stream = _op_key(step, rank.rank, place), (streams[op.stream],)
        others = (_op_key(step, rank.rank, other) for other in op.waits)
        after: tuple[TaskKey, ...] = (last[op.stream], *others, *waits.get(place, ()))
        if op.delay_s:
            delay = key._replace(kind="delay")
            tasks.append(Task(delay, op.delay_s, stream, after, label="delay"))
            after = (delay,)
        label = op.kind if op.kind == HOST_COPY else op.phase
        tasks.append(Task(key, op.duration_s, stream, after, gap_s=op.gap_s, label=label))
        last[op.stream] = key
    ended = (*last.values(), *waits.get(len(rank.ops), ()))
    return [*tasks, Task(end, rank.tail_s, tuple(streams.values()), ended or (start,), label="end")]


def _op_key(step: int, rank: int, place: int) -> TaskKey:
    return TaskKey(step, "start", rank, 0) if place == START else TaskKey(step, "op", rank, place)
