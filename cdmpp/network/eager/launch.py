"""A run of an eager network: the host dispatches call after call, and the device runs what was dispatched."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.network.runtime import LaunchedNetwork, PricedNetwork
from cdmpp.simulate.engine import simulate
from cdmpp.simulate.task import Task
from cdmpp.simulate.timeline import Span, Timeline

_DEVICE, _HOST = "device", "host"


def launched(priced: PricedNetwork) -> LaunchedNetwork:
    """Launch one run, the calls in the order of the program on both sides."""
    graph, tasks = priced.read.graph, list[Task]()
    classes = {kernel.task_id: kernel.op_class for kernel in priced.kernels}
    for place, (call, seconds, dispatch_s) in enumerate(
        zip(graph.calls, priced.call_s, priced.dispatch_s, strict=True)
    ):
        dispatch = f"{call.name} dispatch"
        tasks.append(Task(dispatch, dispatch_s, (_HOST,), priority=place, label=_HOST))
        before = (dispatch, graph.calls[place - 1].name) if place else (dispatch,)
        tasks.append(Task(call.name, seconds, (_DEVICE,), before, priority=place, label=classes[call.task_id]))
    timeline = simulate(tasks)
    busy_s = timeline.busy_s.get(_DEVICE, 0.0)
    return LaunchedNetwork(timeline, timeline.makespan_s - busy_s, host_warnings(timeline.makespan_s, busy_s))


def launched_briefly(priced: PricedNetwork) -> LaunchedNetwork:
    """Launch the same run, its timeline one span: for those who ask only how long it takes. That is the same number."""
    dispatched_s, free_s, busy_s = 0.0, 0.0, 0.0
    for seconds, host_s in zip(priced.call_s, priced.dispatch_s, strict=True):
        dispatched_s += host_s
        start_s = max(dispatched_s, free_s)
        free_s = start_s + seconds
        busy_s = busy_s + free_s - start_s  # as ``Timeline.busy_s`` adds them up
    whole_s = max(free_s, dispatched_s)
    timeline = Timeline({"run": Span(Task("run", whole_s, (_DEVICE,)), 0.0, whole_s, None)})
    return LaunchedNetwork(timeline, whole_s - busy_s, host_warnings(whole_s, busy_s))


def started_s(call_s: Sequence[float], dispatch_s: Sequence[float]) -> list[float]:
    """Return when each call starts in such a run, in seconds: it was dispatched, and the one before has ended."""
    found, dispatched_s, free_s = list[float](), 0.0, 0.0
    for seconds, host_s in zip(call_s, dispatch_s, strict=True):
        dispatched_s += host_s
        found.append(max(dispatched_s, free_s))
        free_s = found[-1] + seconds
    return found


def host_warnings(whole_s: float, busy_s: float) -> tuple[str, ...]:
    """Say whether the host decides how long a run takes, of which the device is busy for ``busy_s``."""
    warning = "the host decides: it dispatches calls slower than the device runs them, and hosts differ"
    return (warning,) if whole_s > 1.1 * busy_s else ()
