"""The event engine: a task starts when its inputs have ended and it is first in the queue of each of its resources."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.simulate.key import Key
from cdmpp.simulate.native import ASKS, DONE, ENDED, STUCK, native_engine
from cdmpp.simulate.spans import Span, Spans
from cdmpp.simulate.task import Task
from cdmpp.simulate.task_columns import NONE, TaskColumns, missing, twice
from cdmpp.simulate.timeline import Timeline

Policy = Callable[[Span, float], Iterable[Task]]
"""Asked at each end, with the span and the time: further tasks, whose inputs may be any known ones."""


class _Engine:
    """One simulation; the compiled engine knows its tasks by their slots."""

    def __init__(self, rates: Mapping[str, float], policy: Policy | None, keep: bool) -> None:
        for name, rate in rates.items():
            if not (math.isfinite(rate) and rate > 0):
                raise DataError(f"link {name!r} has a rate of {rate} bytes a second: it must be finite and positive")
        self.policy, self.keep, self.library = policy, keep, native_engine()
        self.links = {name: number for number, name in enumerate(rates)}
        self.resources: dict[Key, int] = {}
        self.sets: dict[tuple[Key, ...], int] = {}
        self.ways: dict[tuple[str, ...], int] = {}
        self.slots: dict[Key, int] = {}
        """Key of a known task -> its slot."""
        self.tasks = list[Task]()
        """By slot, where more come while others run."""
        speeds = np.array([*rates.values()], np.float64)
        self.handle = self.library.engine_new(len(speeds), speeds.ctypes.data, keep, policy is not None)
        self.state = self.library.engine_state(self.handle).contents

    def close(self) -> None:
        self.library.engine_delete(self.handle)

    def begin(self, columns: TaskColumns) -> None:
        """Take the first tasks."""
        for resources in columns.sets:  # their numbers are their places
            self.set(resources)
        for links in columns.ways:
            self.way(links)
        varying = (
            columns.duration_s, columns.gap_s, columns.priority, columns.resources, columns.way, columns.bytes,
            columns.count,
        )  # fmt: skip
        strides = np.array([one.strides[0] // one.itemsize for one in varying], np.int64)
        arrays = (*varying, strides, columns.begins, columns.befores)
        self.library.engine_begin(self.handle, len(columns.tasks), *(one.ctypes.data for one in arrays))
        if self.policy is not None:
            self.tasks, self.slots = list(columns.tasks), dict(columns.numbers.items())

    def set(self, resources: tuple[Key, ...]) -> int:
        """Return the number of resources that a task holds."""
        if resources not in self.sets:
            numbers = [self.resources.setdefault(one, len(self.resources)) for one in resources]
            self.sets[resources] = self.library.engine_set(self.handle, len(numbers), _array(numbers))
        return self.sets[resources]

    def way(self, links: tuple[str, ...]) -> int:
        """Return the number of links that a flow crosses."""
        if links not in self.ways:
            numbers = [self.links.get(one, NONE) for one in dict.fromkeys(links)]
            self.ways[links] = self.library.engine_way(self.handle, len(numbers), _array(numbers))
        return self.ways[links]

    def add(self, tasks: Iterable[Task]) -> None:
        """Take further tasks."""
        added, library, handle = list[tuple[int, Task]](), self.library, self.handle
        for task in tasks:
            if task.key in self.slots:
                raise twice(task.key)
            flow, duration_s = task.flow, math.nan if callable(task.duration) else task.duration
            sent = (NONE, 0.0, 1) if flow is None else (self.way(flow.links), flow.bytes, flow.count)
            slot = library.engine_add(
                handle, duration_s, task.gap_s, task.priority, self.set(task.resources), *sent
            )  # fmt: skip
            self.slots[task.key] = slot
            self.tasks[slot : slot + 1] = (task,)
            added.append((slot, task))
        for slot, task in added:
            befores = list[int]()
            for key in task.after:
                if key not in self.slots:
                    raise missing(task, key)
                befores.append(self.slots[key])
            library.engine_link(handle, slot, len(befores), _array(befores) if befores else None)

    def run(self, tasks: Sequence[Task]) -> None:
        """Let all tasks run; ``tasks`` are known by slot where no more come."""
        state = self.state
        while (status := self.library.engine_go_on(self.handle)) != DONE:
            task = tasks[state.slot] if self.policy is None else self.tasks[state.slot]
            if status == ENDED:
                self.ended(task)
            elif status == ASKS:
                self.library.engine_answer(self.handle, task.seconds(state.now_s))
            elif status == STUCK:
                raise DataError(f"{state.count} tasks wait for each other in a circle, the first is {task.key!r}")
            else:
                assert task.flow is not None
                link = next(one for one in task.flow.links if one not in self.links)
                raise DataError(f"task {task.key!r}: a flow goes over link {link!r}, whose rate is not given")

    def ended(self, task: Task) -> None:
        """Ask the policy what follows."""
        assert self.policy is not None
        state = self.state
        cause, now_s = state.cause, state.now_s
        if not self.keep:
            del self.slots[task.key]
        span = Span(task, state.start_s, now_s, None if cause < 0 else self.tasks[cause].key)
        if tasks := self.policy(span, now_s):
            self.add(tasks)

    def spans(self, columns: TaskColumns) -> Spans:
        """Return what ran when."""
        tasks, numbers = (columns.tasks, columns.numbers) if self.policy is None else (self.tasks, self.slots)
        order, cause = (np.empty(len(tasks), np.int32) for _ in range(2))
        start_s, end_s = (np.empty(len(tasks)) for _ in range(2))
        self.library.engine_spans(self.handle, *(one.ctypes.data for one in (order, start_s, end_s, cause)))
        return Spans(tasks, numbers, order, start_s, end_s, cause)


def simulate(
    tasks: Sequence[Task] | TaskColumns, policy: Policy | None = None, rates: Mapping[str, float] | None = None,
    keep: bool = True,
) -> Timeline:  # fmt: skip
    """Run ``tasks`` and what ``policy`` adds to them; the same tasks in the same order give the same timeline.

    Args:
        tasks: in any order.
        policy: asked at each end for further tasks.
        rates: bytes a second of each link that a flow names.
        keep: False: a task that has ended is forgotten, so that a simulation of any length takes the memory of what is
            under way. Its key may be used again, no task may wait for it any more, and the timeline is empty: the
            policy sees every span.

    Raises:
        DataError: two tasks of one key, an input that is no task, a circle, a duration that is no time, a link
            without a rate.
    """
    engine = _Engine(rates or {}, policy, keep)
    try:
        columns = tasks if isinstance(tasks, TaskColumns) else TaskColumns.of(tasks)
        engine.begin(columns)
        engine.run(columns.tasks)
        return Timeline(engine.spans(columns) if keep else {})
    finally:
        engine.close()


def _array(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int32 * len(numbers))(*numbers)
