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
"""Events of a task: it ends, or its flow does unless that was rated anew; its gap is over; it starts to send."""
_Order = tuple[int, float, int]
"""Priority, time at which it was ready, number: a total order of all that wait, so no two tasks wait for each other."""


class _Engine:
    def __init__(self, rates: Mapping[str, float]) -> None:
        self.links = SharedLinks(rates)
        self.tasks: list[Task] = []
        self.numbers: dict[Key, int] = {}
        """Key -> place in ``tasks``. Everything below knows a task by that number, which is fast to look up."""
        self.missing: list[int] = []
        self.successors: dict[int, list[int]] = {}
        self.latest: dict[int, int] = {}
        """Task -> its input that ended last."""
        self.queues: dict[Key, list[_Order]] = {}
        self.held: set[Key] = set()
        self.freed: dict[Key, tuple[float, int]] = {}
        """Resource -> when it was freed last, and the task that had held it."""
        self.fresh: set[int] = set()
        """Tasks at the head of a queue that may start now."""
        self.spans: dict[int, Span] = {}
        self.done: set[int] = set()
        self.events: list[tuple[float, int, int]] = []
        """(time, one of the four kinds, task)."""
        self.now_s = 0.0

    def add(self, tasks: Sequence[Task]) -> None:
        first = len(self.tasks)
        for number, task in enumerate(tasks, first):
            if self.numbers.setdefault(task.key, number) != number:
                raise DataError(f"two tasks have the key {task.key!r}: keys are unique in a graph")
        self.tasks += tasks
        for number, task in enumerate(tasks, first):
            waits = 0
            for key in dict.fromkeys(task.after):
                if (before := self.numbers.get(key)) is None:
                    raise DataError(f"task {task.key!r} waits for {key!r}, which is no task")
                if before not in self.done:
                    self.successors.setdefault(before, []).append(number)
                    waits += 1
            self.missing.append(waits)
            if not waits:
                self.wait(number)

    def wait(self, number: int) -> None:
        task = self.tasks[number]
        for resource in task.resources:
            heapq.heappush(self.queues.setdefault(resource, []), (task.priority, self.now_s, number))
        self.fresh.add(number)

    def start(self, number: int) -> None:
        """Start a task where it is first in all its queues and nothing is held."""
        task = self.tasks[number]
        for resource in task.resources:
            if resource in self.held or self.queues[resource][0][2] != number:
                return
        cause = self.latest.get(number)
        since_s = self.spans[cause].end_s if cause is not None else 0.0
        for resource in task.resources:
            heapq.heappop(self.queues[resource])
            self.held.add(resource)
            freed_s, before = self.freed.get(resource, (0.0, number))
            if freed_s > since_s:
                since_s, cause = freed_s, before
        end_s = self.now_s + task.seconds(self.now_s)
        self.spans[number] = Span(task, self.now_s, end_s, None if cause is None else self.tasks[cause].key)
        heapq.heappush(self.events, (end_s, _END if task.flow is None else _SENDS, number))

    def arrived(self, number: int) -> bool:
        """Return True if the flow of a task has ended."""
        if not self.links.ends(self.tasks[number].key, self.now_s):
            return False
        begun = self.spans[number]
        self.spans[number] = Span(begun.task, begun.start_s, self.now_s, begun.cause)
        return True

    def end(self, number: int, policy: Policy | None) -> None:
        self.done.add(number)
        for successor in self.successors.pop(number, ()):
            self.missing[successor] -= 1
            self.latest[successor] = number
            if not self.missing[successor]:
                self.wait(successor)
        if policy is not None:
            self.add(list(policy(self.spans[number], self.now_s)))

    def free(self, number: int) -> None:
        for resource in self.tasks[number].resources:
            self.held.remove(resource)
            self.freed[resource] = (self.now_s, number)
            if queue := self.queues[resource]:
                self.fresh.add(queue[0][2])

    def happen(self, kind: int, number: int, policy: Policy | None) -> None:
        task = self.tasks[number]
        if kind == _SENDS and task.flow is not None:
            self.links.join(task.key, task.flow, self.now_s)
        elif kind == _FREE:
            self.free(number)
        elif kind == _END or self.arrived(number):
            self.end(number, policy)
            if task.gap_s:
                heapq.heappush(self.events, (self.now_s + task.gap_s, _FREE, number))
            else:
                self.free(number)

    def run(self, policy: Policy | None) -> Timeline:
        while self.fresh or self.events:
            waiting, self.fresh = sorted(self.fresh), set()
            for number in waiting:
                self.start(number)
            if not self.events:
                break
            self.now_s = self.events[0][0]
            while self.events and self.events[0][0] == self.now_s:  # what ends together ends before anything starts
                _, kind, number = heapq.heappop(self.events)
                self.happen(kind, number, policy)
            if self.links.changed:
                for key, end_s in self.links.rerated(self.now_s):
                    heapq.heappush(self.events, (end_s, _ARRIVED, self.numbers[key]))
        if stuck := [task for number, task in enumerate(self.tasks) if number not in self.done]:
            raise DataError(f"{len(stuck)} tasks wait for each other in a circle, the first is {stuck[0].key!r}")
        return Timeline({span.task.key: span for span in self.spans.values()})


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
