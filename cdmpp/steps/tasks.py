"""The simulated graph: steps of all ranks, one after the other, with what they exchange."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cdmpp.collectives.topology import Topology
from cdmpp.simulate.flow import Flow
from cdmpp.simulate.task import Task, check_tasks
from cdmpp.simulate.task_columns import TaskColumns
from cdmpp.simulate.timeline import Timeline
from cdmpp.steps.exchange import START
from cdmpp.steps.exchange_costs import ExchangeCosts
from cdmpp.steps.exchange_tasks import carried
from cdmpp.steps.keys import Stream, TaskKey
from cdmpp.steps.repeated_tasks import repeated
from cdmpp.steps.step_graph import HOST_COPY, RankGraph, StepGraph
from cdmpp.steps.synchrony import Synchrony

STEPS, STEADY = 4, 2
"""Steps that are simulated, and the one that is reported: from the third on ranks have found their order, and those
that are ahead of others are in the next one."""


def step_tasks(
    graph: StepGraph, topology: Topology | None = None, granularity: str = "collective", steps: int = STEPS,
    synchrony: Synchrony | None = None,
) -> TaskColumns:  # fmt: skip
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
        return repeated(TaskColumns.of(_step(0, 0, graph, costs, granularity)), steps)
    tasks = list[Task]()
    for step, other in enumerate(awaited):
        tasks += _step(step, other, graph, costs, granularity)
    return TaskColumns.of(tasks)


def check_work(tasks: int, ranks: int) -> None:
    """Raise ``CdmppError`` where steps of this many tasks, those of all ranks together, are too many to simulate."""
    check_tasks(STEPS * tasks, f"replaying {STEPS} steps of {ranks:,} ranks", "take fewer ranks")


def step_ends_s(timeline: Timeline, ranks: int, steps: int = STEPS) -> list[float]:
    """Return the seconds at which the last of so many ranks has ended each step."""
    spans = timeline.spans
    return [max(spans[TaskKey(step, "end", rank, 0)].end_s for rank in range(ranks)) for step in range(steps)]


def _step(
    step: int, awaited: int | None, graph: StepGraph, costs: ExchangeCosts | None, granularity: str
) -> list[Task]:
    """Tasks of one step. Its updates and its end wait for the exchanges of the step ``awaited``, if there is one."""
    exchanged = list[Task]()
    previous = dict[Stream, tuple[TaskKey, ...]]()
    collectives = defaultdict[int, list[tuple[int, tuple[TaskKey, ...]]]](list)
    waits: list[dict[int, list[TaskKey]]] = [{} for _ in graph.ranks]
    keys = [_op_keys(step, rank) for rank in graph.ranks]
    for place, one in enumerate(graph.exchanges):
        is_queued = one.wire_s is None and one.kind != "push_pull"
        streams = costs.streams(one) if is_queued and costs is not None else ()
        launched: dict[int, tuple[TaskKey, ...]] = {rank: (keys[rank][at],) for rank, at in one.after.items()}
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
    computed = [_rank(step, rank, keys[rank.rank], waits[rank.rank]) for rank in graph.ranks]
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


def _rank(step: int, rank: RankGraph, keys: Sequence[TaskKey], waits: Mapping[int, list[TaskKey]]) -> list[Task]:
    """Tasks of one rank; ``waits``: place of an op -> tasks of exchanges that it waits for."""
    streams = {name: Stream(rank.rank, name) for name in rank.streams}
    start, end = keys[START], TaskKey(step, "end", rank.rank, 0)
    before = (end._replace(step=step - 1),) if step else ()
    tasks = [Task(start, rank.start_s, tuple(streams.values()), before, label="start")]
    last = dict.fromkeys(streams, start)
    held = {name: (stream,) for name, stream in streams.items()}
    for place, op in enumerate(rank.ops):
        key, own = keys[place], held[op.stream]
        after: tuple[TaskKey, ...] = (last[op.stream],)
        if op.waits:
            after += tuple([keys[other] for other in op.waits])
        if place in waits:
            after += tuple(waits[place])
        if op.delay_s:
            delay = key._replace(kind="delay")
            tasks.append(Task(delay, op.delay_s, own, after, label="delay"))
            after = (delay,)
        label = op.kind if op.kind == HOST_COPY else op.phase
        tasks.append(Task(key, op.duration_s, own, after, gap_s=op.gap_s, label=label))
        last[op.stream] = key
    ended = (*last.values(), *waits.get(len(rank.ops), ()))
    return [*tasks, Task(end, rank.tail_s, tuple(streams.values()), ended or (start,), label="end")]


def _op_keys(step: int, rank: RankGraph) -> list[TaskKey]:
    """Keys of all ops of a rank; behind them, at place ``START``, that of its start."""
    number = rank.rank
    return [*(TaskKey(step, "op", number, place) for place in range(len(rank.ops))), TaskKey(step, "start", number, 0)]
