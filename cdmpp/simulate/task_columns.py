"""TaskColumns: tasks as the event engine reads them, a column for each of their fields, by number."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError
from cdmpp.simulate.key import Key
from cdmpp.simulate.task import Task

NONE = -1
"""The number of what is not there."""


@dataclass(frozen=True, eq=False)
class TaskColumns:
    """The number of a task is its place among those that are given."""

    tasks: Sequence[Task]
    numbers: Mapping[Key, int]
    """Key of a task -> its number."""
    duration_s: NDArray[np.float64]
    """(n,) not a number where a task asks for it when it starts."""
    gap_s: NDArray[np.float64]
    priority: NDArray[np.float64]
    resources: NDArray[np.int32]
    """(n,) places in ``sets``."""
    sets: Sequence[tuple[Key, ...]]
    """Resources that a task holds, each tuple once."""
    way: NDArray[np.int32]
    """(n,) places in ``ways``; ``NONE``: it sends nothing."""
    ways: Sequence[tuple[str, ...]]
    """Links that a flow crosses, each tuple once."""
    bytes: NDArray[np.float64]
    count: NDArray[np.int64]
    """(n,) flows side by side."""
    begins: NDArray[np.int64]
    """(n + 1,) places in ``befores`` at which the inputs of each task begin, and of their end."""
    befores: NDArray[np.int32]
    """Numbers of the inputs of all tasks."""

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> TaskColumns:
        """Read the columns of tasks; ``DataError``: two of one key, or an input that is no task."""
        many = len(tasks)
        keys, afters = ([getattr(task, name) for task in tasks] for name in ("key", "after"))
        numbers = dict(zip(keys, range(many), strict=True))
        if len(numbers) < many:
            raise twice(_first_again(keys))
        begins = np.zeros(many + 1, np.int64)
        np.cumsum(np.fromiter(map(len, afters), np.int64, many), out=begins[1:])
        try:
            befores = np.fromiter(map(numbers.__getitem__, chain.from_iterable(afters)), np.int32, int(begins[-1]))
        except KeyError:
            raise next(missing(task, key) for task in tasks for key in task.after if key not in numbers) from None
        sets, ways = (defaultdict[Any, int](count().__next__) for _ in range(2))
        way, sizes, flows = np.full(many, NONE, np.int32), np.zeros(many), np.ones(many, np.int64)
        for number, flow in enumerate(map(attrgetter("flow"), tasks)):
            if flow is not None:
                way[number], sizes[number], flows[number] = ways[flow.links], flow.bytes, flow.count
        held = map(sets.__getitem__, map(attrgetter("resources"), tasks))
        return cls(
            tasks, numbers, _durations(tasks), _column(tasks, "gap_s"), _column(tasks, "priority"),
            np.fromiter(held, np.int32, many), tuple(sets), way, tuple(ways), sizes, flows, begins, befores,
        )  # fmt: skip


def _first_again(keys: Sequence[Key]) -> Key:
    """Return the first key that was there before."""
    seen = set[Key]()
    for key in keys:
        if key in seen:
            break
        seen.add(key)
    return key


def _column(tasks: Sequence[Task], name: str) -> NDArray[np.float64]:
    return np.fromiter(map(attrgetter(name), tasks), np.float64, len(tasks))


def _durations(tasks: Sequence[Task]) -> NDArray[np.float64]:
    try:
        return _column(tasks, "duration")
    except TypeError:  # one is asked for
        return np.array([math.nan if callable(task.duration) else task.duration for task in tasks])


def twice(key: Key) -> DataError:
    """Return the error of two tasks with one key."""
    return DataError(f"two tasks have the key {key!r}: keys are unique in a graph")


def missing(task: Task, key: Key) -> DataError:
    """Return the error of a task with an input that is no task."""
    return DataError(f"task {task.key!r} waits for {key!r}, which is no task")
