"""A network's calls replayed on the engines of a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdmpp.devices.launch_overheads import LaunchOverheads
from cdmpp.network.graph import NetworkGraph
from cdmpp.simulate.engine import simulate
from cdmpp.simulate.task import Task
from cdmpp.simulate.timeline import Timeline

START = "start"
"""Name of the task that stands for what a run takes once."""


def replay(graph: NetworkGraph, seconds: Sequence[float], overheads: LaunchOverheads) -> Timeline:
    """Replay one run: a span a call. ``seconds`` (n calls) is how long each kernel takes.

    Each call runs on the engine of its op class, in the order of the program on each of its streams. Between two
    kernels of a stream lies the device's ``call_s``; the first waits for ``run_s`` besides.
    """
    call_s, run_s = overheads.call_s or 0.0, overheads.run_s or 0.0
    begin = Task(START, run_s + call_s, label=START)
    names, before = [call.name for call in graph.calls], dict[str, str]()
    tasks = [begin]
    for call, duration, stream in zip(graph.calls, seconds, _streams(graph, seconds, overheads), strict=True):
        after = (*(names[place] for place in call.inputs), before.get(stream, START))
        before[stream] = call.name
        label = graph.tasks[call.task_id].op_class
        tasks.append(Task(call.name, duration, (stream,), after, gap_s=call_s, label=label))
    return simulate(tasks)


def _streams(graph: NetworkGraph, seconds: Sequence[float], overheads: LaunchOverheads) -> list[str]:
    """The queue of each call: behind one of its inputs where that stands last in its queue, else the least busy one."""
    ends: dict[str, float] = {}
    last: dict[str, int] = {}
    found: list[str] = []
    for place, call in enumerate(graph.calls):
        engine = overheads.engine_of(graph.tasks[call.task_id].op_class)
        queues = [f"{engine} {i}" if overheads.streams > 1 else engine for i in range(overheads.streams)]
        behind = [queue for queue in queues if last.get(queue, -1) in call.inputs]
        queue = behind[0] if behind else min(queues, key=lambda name: ends.get(name, 0.0))
        ends[queue] = ends.get(queue, 0.0) + seconds[place]
        last[queue] = place
        found.append(queue)
    return found


def overhead_seconds(timeline: Timeline) -> float:
    """Return the seconds of a run that the kernels of its busiest queue do not take."""
    busiest = max(timeline.busy_s.values(), default=0.0)
    return max(0.0, timeline.makespan_s - busiest)


def by_task(graph: NetworkGraph, values: Sequence[float]) -> Mapping[str, float]:
    """Return the mean over the calls of each task, by id."""
    sums: dict[str, float] = {}
    for call, value in zip(graph.calls, values, strict=True):
        sums[call.task_id] = sums.get(call.task_id, 0.0) + value
    return {key: total / graph.counts[key] for key, total in sums.items()}
