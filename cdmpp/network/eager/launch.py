"""A run of an eager network: the host dispatches call after call, and the device runs what was dispatched."""

from __future__ import annotations

from cdmpp.network.runtime import LaunchedNetwork, PricedNetwork
from cdmpp.simulate.engine import simulate
from cdmpp.simulate.task import Task

_DEVICE, _HOST = "device", "host"


def launched(priced: PricedNetwork) -> LaunchedNetwork:
    """Launch one run, the calls in the order of the program on both sides."""
    graph, tasks = priced.read.graph, list[Task]()
    for place, (call, seconds, dispatch_s) in enumerate(
        zip(graph.calls, priced.call_s, priced.dispatch_s, strict=True)
    ):
        dispatch = f"{call.name} dispatch"
        tasks.append(Task(dispatch, dispatch_s, (_HOST,), priority=place, label=_HOST))
        label = graph.tasks[call.task_id].op_class
        before = (dispatch, graph.calls[place - 1].name) if place else (dispatch,)
        tasks.append(Task(call.name, seconds, (_DEVICE,), before, priority=place, label=label))
    timeline = simulate(tasks)
    busy_s = timeline.busy_s.get(_DEVICE, 0.0)
    decides = timeline.makespan_s > 1.1 * busy_s
    warning = "the host decides: it dispatches calls slower than the device runs them, and hosts differ"
    return LaunchedNetwork(timeline, timeline.makespan_s - busy_s, (warning,) if decides else ())
