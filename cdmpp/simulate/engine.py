"""The event engine: a task starts when its inputs have ended and it is first in the queue of each of its resources."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from cdmpp.errors import DataError
from cdmpp.simulate.flow import SharedLinks
from cdmpp.simulate.task import Task
from cdmpp.simulate.timeline import Span, Timeline

Policy = Callable[[Span, float], Iterable[Task]]
"""Asked at each end, with the span and the time: further tasks, whose inputs may be any known ones."""
_END, _ARRIVED, _FREE, _SENDS = range(4)
"""What happens to a task: it ends, or its flow does unless that was rated anew; its gap is over; it starts to send."""
_Order = tuple[int, float, int]
"""Priority, time at which it was ready, number: a total order of all that wait, so no two tasks wait for each other."""


class _Engine:
    def __init__(self, rates: Mapping[str, float]) -> None:
        self.links = SharedLinks(rates)
        self.tasks: dict[str, Task] = {}
        self.numbers: dict[str, int] = {}
        self.missing: dict[str, int] = {}
        self.successors: dict[str, list[str]] = {}
        self.latest: dict[str, str] = {}
        """Task -> its input that ended last."""
        self.queues: dict[str, list[tuple[_Order, str]]] = {}
        self.held: dict[str, str] = {}
        self.freed: dict[str, tuple[float, str]] = {}
        """Resource -> when it was freed last, and the task that had held it."""
        self.fresh: dict[str, None] = {}
        """Tasks at the head of a queue that may start now."""
        self.spans: dict[str, Span] = {}
        self.done: set[str] = set()
        self.events: list[tuple[float, int, int, str]] = []
        """(time, one of the four kinds, number, task)."""
        self.now_s = 0.0

    def add(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if task.name in self.tasks:
                raise DataError(f"two tasks are named {task.name!r}: names are unique in a graph")
            self.tasks[task.name] = task
            self.numbers[task.name] = len(self.numbers)
        for task in tasks:
            waits = 0
            for name in dict.fromkeys(task.after):
                if name not in self.tasks:
                    raise DataError(f"task {task.name!r} waits for {name!r}, which is no task")
                if name not in self.done:
                    self.successors.setdefault(name, []).append(task.name)
                    waits += 1
            self.missing[task.name] = waits
            if not waits:
                self.wait(task)

    def wait(self, task: Task) -> None:
        order = (task.priority, self.now_s, self.numbers[task.name])
        for resource in task.resources:
            heapq.heappush(self.queues.setdefault(resource, []), (order, task.name))
        self.fresh[task.name] = None

    def start(self, name: str) -> None:
        """Where it is first in all its queues and nothing is held."""
        task = self.tasks[name]
        for resource in task.resources:
            if resource in self.held or self.queues[resource][0][1] != name:
                return
        cause = self.latest.get(name)
        since_s = self.spans[cause].end_s if cause is not None else 0.0
        for resource in task.resources:
            heapq.heappop(self.queues[resource])
            self.held[resource] = name
            freed_s, before = self.freed.get(resource, (0.0, ""))
            if freed_s > since_s:
                since_s, cause = freed_s, before
        end_s = self.now_s + task.seconds(self.now_s)
        self.spans[name] = Span(task, self.now_s, end_s, cause)
        heapq.heappush(self.events, (end_s, _END if task.flow is None else _SENDS, self.numbers[name], name))

    def arrived(self, name: str) -> bool:
        """Whether the flow of a task has ended."""
        if not self.links.ends(name, self.now_s):
            return False
        begun = self.spans[name]
        self.spans[name] = Span(begun.task, begun.start_s, self.now_s, begun.cause)
        return True

    def end(self, name: str, policy: Policy | None) -> None:
        self.done.add(name)
        for successor in self.successors.pop(name, ()):
            self.missing[successor] -= 1
            self.latest[successor] = name
            if not self.missing[successor]:
                self.wait(self.tasks[successor])
        if policy is not None:
            self.add(list(policy(self.spans[name], self.now_s)))

    def free(self, task: Task) -> None:
        for resource in task.resources:
            del self.held[resource]
            self.freed[resource] = (self.now_s, task.name)
            if queue := self.queues[resource]:
                self.fresh[queue[0][1]] = None

    def happen(self, kind: int, name: str, policy: Policy | None) -> None:
        task = self.tasks[name]
        if kind == _SENDS and task.flow is not None:
            self.links.join(name, task.flow, self.now_s)
        elif kind == _FREE:
            self.free(task)
        elif kind == _END or self.arrived(name):
            self.end(name, policy)
            if task.gap_s:
                heapq.heappush(self.events, (self.now_s + task.gap_s, _FREE, self.numbers[name], name))
            else:
                self.free(task)

    def run(self, policy: Policy | None) -> Timeline:
        while self.fresh or self.events:
            waiting, self.fresh = sorted(self.fresh, key=self.numbers.__getitem__), {}
            for name in waiting:
                self.start(name)
            if not self.events:
                break
            self.now_s = self.events[0][0]
            while self.events and self.events[0][0] == self.now_s:  # what ends together ends before anything starts
                _, kind, _, name = heapq.heappop(self.events)
                self.happen(kind, name, policy)
            if self.links.changed:
                for name, end_s in self.links.rerated(self.now_s):
                    heapq.heappush(self.events, (end_s, _ARRIVED, self.numbers[name], name))
        if stuck := [name for name in self.tasks if name not in self.done]:
            raise DataError(f"{len(stuck)} tasks wait for each other in a circle, the first is {stuck[0]!r}")
        return Timeline(self.spans)


def simulate(tasks: Sequence[Task], policy: Policy | None = None, rates: Mapping[str, float] | None = None) -> Timeline:
    """Run ``tasks`` and what ``policy`` adds to them; the same tasks in the same order give the same timeline.

    Args:
        tasks: in any order.
        policy: asked at each end for further tasks.
        rates: bytes a second of each link that a flow names.

    Raises:
        DataError: two tasks of one name, an input that is no task, a circle, a duration that is no time, a link
            without a rate.
    """
    engine = _Engine(rates or {})
    engine.add(tasks)
    return engine.run(policy)
