"""TaskColumns: tasks as the event engine reads them, a column for each of their fields, by number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError
from cdmpp.simulate.key import Key
from cdmpp.simulate.task import Task
from cdmpp.simulate.task_reader import reading

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
        many, listed = len(tasks), tasks if isinstance(tasks, list) else list(tasks)
        duration_s, gap_s, priority = (np.empty(many) for _ in range(3))
        resources, sends, begins = np.empty(many, np.int32), np.empty(many, np.bool_), np.empty(many + 1, np.int64)
        sets, varies = list[tuple[Key, ...]](), np.zeros(2, np.bool_)
        with reading(many) as reader:
            found = reader.read(listed, duration_s, gap_s, priority, resources, sends, begins, varies, sets)
            if found is not None:
                raise twice(listed[found].key)
            befores = np.empty(int(begins[-1]), np.int32)
            if (wrong := reader.read_inputs(listed, befores)) is not None:
                at, place = wrong
                raise missing(listed[at], tuple(listed[at].after)[place])
        gap_s, priority = (
            one if is_own else same_for(many, one[:1]) for one, is_own in zip((gap_s, priority), varies, strict=True)
        )
        way, sizes, flows = (same_for(many, np.array([one])) for one in (np.int32(NONE), 0.0, 1))
        ways = defaultdict[Any, int](count().__next__)
        if sends.any():
            way, sizes, flows = (np.array(one) for one in (way, sizes, flows))
        for number in np.flatnonzero(sends).tolist():
            flow = listed[number].flow
            assert flow is not None
            way[number], sizes[number], flows[number] = ways[flow.links], flow.bytes, flow.count
        return cls(
            tasks, Numbers(listed), duration_s, gap_s, priority, resources, tuple(sets), way, tuple(ways), sizes, flows,
            begins, befores,
        )  # fmt: skip


def same_for(tasks: int, value: NDArray[Any]) -> NDArray[Any]:
    """Return a column of so many tasks that have all the same value, (1,), and no memory of their own."""
    return np.broadcast_to(value, tasks) if tasks else value[:0]


@dataclass(frozen=True, eq=False)
class Numbers(Mapping[Key, int]):
    """Numbers of tasks by their keys; the table is made when somebody looks one up."""

    tasks: Sequence[Task]

    @cached_property
    def _all(self) -> dict[Key, int]:
        return {task.key: number for number, task in enumerate(self.tasks)}

    def __getitem__(self, key: Key) -> int:
        return self._all[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self.tasks)

    def items(self):  # type: ignore[no-untyped-def,override]
        """Return keys and numbers, in the order of the numbers."""
        return self._all.items()


def twice(key: Key) -> DataError:
    """Return the error of two tasks with one key."""
    return DataError(f"two tasks have the key {key!r}: keys are unique in a graph")


def missing(task: Task, key: Key) -> DataError:
    """Return the error of a task with an input that is no task."""
    return DataError(f"task {task.key!r} waits for {key!r}, which is no task")
