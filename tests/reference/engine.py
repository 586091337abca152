"""The event engine: a task starts when its inputs have ended and it is first in the queue of each of its resources."""

from __future__ import annotations

import gc
import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from reference.shared_links import SharedLinks

from cdmpp.errors import DataError
from cdmpp.simulate.key import Key
from cdmpp.simulate.task import Task
from cdmpp.simulate.timeline import Span, Timeline

Policy = Callable[[Span, float], Iterable[Task]]
"""Asked at each end, with the span and the time: further tasks, whose inputs may be any known ones."""
_END, _ARRIVED, _FREE, _SENDS = range(4)
"""Events of a task: it ends; its flow does; its gap is over; it starts to send."""


class _Run:
    """A task of the simulation."""

    __slots__ = ("cause", "end_s", "missing", "number", "since_s", "start_s", "successors", "task")

    def __init__(self, number: int, task: Task) -> None:
        self.number, self.task = number, task
        """All that wait are in the order of priority, time at which they were ready, number: a total order, so no two
        tasks wait for each other."""
        self.missing = 0
        """Inputs that have not ended."""
        self.successors: list[_Run] | None = None
        self.cause: Key | None = None
        """What it waited for last, until ``since_s``."""
        self.since_s = 0.0
        self.start_s = 0.0
        self.end_s = math.nan
        """Not a number: it has not ended."""

    @property
    def span(self) -> Span:
        return Span(self.task, self.start_s, self.end_s, self.cause)


class _Engine:
    def __init__(self, rates: Mapping[str, float], policy: Policy | None, keep: bool) -> None:
        self.links = SharedLinks(rates)
        self.policy, self.keep = policy, keep
        self.count = 0
        """Tasks so far."""
        self.known: dict[Key, _Run] = {}
        self.started: list[_Run] = []
        """In the order of their starts."""
        self.queues: dict[Key, list[tuple[int, float, int, _Run]]] = {}
        self.held: set[Key] = set()
        self.freed: dict[Key, tuple[float, Key]] = {}
        """Resource -> when it was freed last, and the task that had held it."""
        self.fresh: dict[int, _Run] = {}
        """Tasks at the head of a queue that may start now, by number."""
        self.events: list[tuple[float, int, int, _Run]] = []
        """(time, one of the four kinds, number of the task, task)."""
        self.now_s = 0.0

    def add(self, tasks: Iterable[Task]) -> None:
        linked = list[_Run]()
        for task in tasks:
            run = _Run(self.count, task)
            self.count += 1
            if self.known.setdefault(task.key, run) is not run:
                raise DataError(f"two tasks have the key {task.key!r}: keys are unique in a graph")
            if task.after:
                linked.append(run)
            else:
                self.wait(run)
        for run in linked:
            for key in dict.fromkeys(run.task.after):
                if (before := self.known.get(key)) is None:
                    raise DataError(f"task {run.task.key!r} waits for {key!r}, which is no task")
                if before.end_s != before.end_s:
                    if before.successors is None:
                        before.successors = []
                    before.successors.append(run)
                    run.missing += 1
            if not run.missing:
                self.wait(run)

    def wait(self, run: _Run) -> None:
        task = run.task
        if task.resources:
            for resource in task.resources:
                heapq.heappush(self.queues.setdefault(resource, []), (task.priority, self.now_s, run.number, run))
        self.fresh[run.number] = run

    def start_fresh(self) -> None:
        if len(self.fresh) == 1:
            self.start(self.fresh.popitem()[1])
            return
        waiting, self.fresh = self.fresh, {}
        for number in sorted(waiting):
            self.start(waiting[number])

    def start(self, run: _Run) -> None:
        """Start a task where it is first in all its queues and nothing is held."""
        task = run.task
        if task.resources:
            for resource in task.resources:
                if resource in self.held or self.queues[resource][0][3] is not run:
                    return
            self.hold(run)
        run.start_s = self.now_s
        if self.keep:
            self.started.append(run)
        duration = task.duration
        end_s = self.now_s + (duration if type(duration) is float else task.seconds(self.now_s))
        heapq.heappush(self.events, (end_s, _END if task.flow is None else _SENDS, run.number, run))

    def hold(self, run: _Run) -> None:
        for resource in run.task.resources:
            heapq.heappop(self.queues[resource])
            self.held.add(resource)
            freed_s, before = self.freed.get(resource, (0.0, None))
            if freed_s > run.since_s:
                run.since_s, run.cause = freed_s, before

    def end(self, run: _Run) -> None:
        run.end_s = self.now_s
        if not self.keep:
            del self.known[run.task.key]
        if run.successors is not None:
            for successor in run.successors:
                successor.missing -= 1
                successor.cause, successor.since_s = run.task.key, self.now_s
                if not successor.missing:
                    self.wait(successor)
            run.successors = None
        if self.policy is not None and (tasks := self.policy(run.span, self.now_s)):
            self.add(tasks)
        if run.task.gap_s:
            heapq.heappush(self.events, (self.now_s + run.task.gap_s, _FREE, run.number, run))
        elif run.task.resources:
            self.free(run)

    def free(self, run: _Run) -> None:
        for resource in run.task.resources:
            self.held.remove(resource)
            self.freed[resource] = (self.now_s, run.task.key)
            if queue := self.queues[resource]:
                self.fresh[queue[0][2]] = queue[0][3]

    def run(self) -> None:
        events, links = self.events, self.links
        while True:
            if self.fresh:
                self.start_fresh()
            sent_s = links.next_s(self.now_s) if links.flows else math.inf
            now_s = min(events[0][0], sent_s) if events else sent_s
            if now_s == math.inf:
                break
            self.now_s = now_s
            if sent_s == now_s:
                arrived = links.ended(now_s)
                if len(arrived) == 1 and not (events and events[0][0] == now_s):  # so it is mostly
                    self.end(arrived[0])
                    continue
                for run in arrived:
                    heapq.heappush(events, (now_s, _ARRIVED, run.number, run))
            while events and events[0][0] == now_s:  # what ends together ends before anything starts
                _, kind, _, run = heapq.heappop(events)
                if kind == _SENDS:
                    self.send(run)
                elif kind == _FREE:
                    self.free(run)
                else:
                    self.end(run)
        if stuck := [run for run in self.known.values() if run.end_s != run.end_s]:
            raise DataError(f"{len(stuck)} tasks wait for each other in a circle, the first is {stuck[0].task.key!r}")

    def send(self, run: _Run) -> None:
        assert run.task.flow is not None
        try:
            self.links.join(run, run.task.flow, self.now_s)
        except DataError as error:
            raise DataError(f"task {run.task.key!r}: {error}") from None


def simulate(
    tasks: Sequence[Task], policy: Policy | None = None, rates: Mapping[str, float] | None = None, keep: bool = True
) -> Timeline:
    """Run ``tasks`` and what ``policy`` adds to them; the same tasks in the same order give the same timeline.

    Arguments and errors are those of ``cdmpp.simulate.engine.simulate``.
    """
    engine = _Engine(rates or {}, policy, keep)
    collects = keep and gc.isenabled()
    if collects:  # half of the time would go into looking at tasks and spans, which are all kept
        gc.disable()
    try:
        engine.add(tasks)
        engine.run()
        return Timeline({run.task.key: run.span for run in engine.started})
    finally:
        if collects:
            gc.enable()
