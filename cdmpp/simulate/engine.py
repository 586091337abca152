"""The event engine: a task starts when its inputs have ended and it is first in the queue of each of its resources."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from cdmpp.errors import DataError
from cdmpp.simulate.flow import SharedLinks
from cdmpp.simulate.key import Key
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
        self.tasks: dict[Key, Task] = {}
        self.numbers: dict[Key, int] = {}
        self.missing: dict[Key, int] = {}
        self.successors: dict[Key, list[Key]] = {}
        self.latest: dict[Key, Key] = {}
        """Task -> its input that ended last."""
        self.queues: dict[Key, list[tuple[_Order, Key]]] = {}
        self.held: dict[Key, Key] = {}
        self.freed: dict[Key, tuple[float, Key]] = {}
        """Resource -> when it was freed last, and the task that had held it."""
        self.fresh: dict[Key, None] = {}
        """Tasks at the head of a queue that may start now."""
        self.spans: dict[Key, Span] = {}
        self.done: set[Key] = set()
        self.events: list[tuple[float, int, int, Key]] = []
        """(time, one of the four kinds, number, task)."""
        self.now_s = 0.0

    def add(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if task.key in self.tasks:
                raise DataError(f"two tasks have the key {task.key!r}: keys are unique in a graph")
            self.tasks[task.key] = task
            self.numbers[task.key] = len(self.numbers)
        for task in tasks:
            waits = 0
            for key in dict.fromkeys(task.after):
                if key not in self.tasks:
                    raise DataError(f"task {task.key!r} waits for {key!r}, which is no task")
                if key not in self.done:
                    self.successors.setdefault(key, []).append(task.key)
                    waits += 1
            self.missing[task.key] = waits
            if not waits:
                self.wait(task)

    def wait(self, task: Task) -> None:
        order = (task.priority, self.now_s, self.numbers[task.key])
        for resource in task.resources:
            heapq.heappush(self.queues.setdefault(resource, []), (order, task.key))
        self.fresh[task.key] = None

    def start(self, key: Key) -> None:
        """Where it is first in all its queues and nothing is held."""
        task = self.tasks[key]
        for resource in task.resources:
            if resource in self.held or self.queues[resource][0][1] != key:
                return
        cause = self.latest.get(key)
        since_s = self.spans[cause].end_s if cause is not None else 0.0
        for resource in task.resources:
            heapq.heappop(self.queues[resource])
            self.held[resource] = key
            freed_s, before = self.freed.get(resource, (0.0, ""))
            if freed_s > since_s:
                since_s, cause = freed_s, before
        end_s = self.now_s + task.seconds(self.now_s)
        self.spans[key] = Span(task, self.now_s, end_s, cause)
        heapq.heappush(self.events, (end_s, _END if task.flow is None else _SENDS, self.numbers[key], key))

    def arrived(self, key: Key) -> bool:
        """Whether the flow of a task has ended."""
        if not self.links.ends(key, self.now_s):
            return False
        begun = self.spans[key]
        self.spans[key] = Span(begun.task, begun.start_s, self.now_s, begun.cause)
        return True

    def end(self, key: Key, policy: Policy | None) -> None:
        self.done.add(key)
        for successor in self.successors.pop(key, ()):
            self.missing[successor] -= 1
            self.latest[successor] = key
            if not self.missing[successor]:
                self.wait(self.tasks[successor])
        if policy is not None:
            self.add(list(policy(self.spans[key], self.now_s)))

    def free(self, task: Task) -> None:
        for resource in task.resources:
            del self.held[resource]
            self.freed[resource] = (self.now_s, task.key)
            if queue := self.queues[resource]:
                self.fresh[queue[0][1]] = None

    def happen(self, kind: int, key: Key, policy: Policy | None) -> None:
        task = self.tasks[key]
        if kind == _SENDS and task.flow is not None:
            self.links.join(key, task.flow, self.now_s)
        elif kind == _FREE:
            self.free(task)
        elif kind == _END or self.arrived(key):
            self.end(key, policy)
            if task.gap_s:
                heapq.heappush(self.events, (self.now_s + task.gap_s, _FREE, self.numbers[key], key))
            else:
                self.free(task)

    def run(self, policy: Policy | None) -> Timeline:
        while self.fresh or self.events:
            waiting, self.fresh = sorted(self.fresh, key=self.numbers.__getitem__), {}
            for key in waiting:
                self.start(key)
            if not self.events:
                break
            self.now_s = self.events[0][0]
            while self.events and self.events[0][0] == self.now_s:  # what ends together ends before anything starts
                _, kind, _, key = heapq.heappop(self.events)
                self.happen(kind, key, policy)
            if self.links.changed:
                for key, end_s in self.links.rerated(self.now_s):
                    heapq.heappush(self.events, (end_s, _ARRIVED, self.numbers[key], key))
        if stuck := [key for key in self.tasks if key not in self.done]:
            raise DataError(f"{len(stuck)} tasks wait for each other in a circle, the first is {stuck[0]!r}")
        return Timeline(self.spans)


def simulate(tasks: Sequence[Task], policy: Policy | None = None, rates: Mapping[str, float] | None = None) -> Timeline:
    """Run ``tasks`` and what ``policy`` adds to them; the same tasks in the same order give the same timeline.

    Args:
        tasks: in any order.
        policy: asked at each end for further tasks.
        rates: bytes a second of each link that a flow names.

    Raises:
        DataError: two tasks of one key, an input that is no task, a circle, a duration that is no time, a link
            without a rate.
    """
    engine = _Engine(rates or {})
    engine.add(tasks)
    return engine.run(policy)
