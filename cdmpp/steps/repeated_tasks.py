"""RepeatedTasks: equal steps one after the other, of which only the first one is there as tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cdmpp.simulate.key import Key
from cdmpp.simulate.task import Task
from cdmpp.simulate.task_columns import TaskColumns, same_for
from cdmpp.steps.keys import TaskKey


@dataclass(frozen=True, eq=False)
class RepeatedTasks(Sequence[Task]):
    """Tasks of later steps are those of the first one, each made when somebody asks for it."""

    first: Sequence[Task]
    steps: int

    def __len__(self) -> int:
        return self.steps * len(self.first)

    @overload
    def __getitem__(self, number: int) -> Task: ...

    @overload
    def __getitem__(self, number: slice) -> list[Task]: ...

    def __getitem__(self, number: int | slice) -> Task | list[Task]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        step, place = divmod(range(len(self))[number], len(self.first))
        return _moved(self.first[place], step) if step else self.first[place]

    def __iter__(self) -> Iterator[Task]:
        yield from self.first
        for step in range(1, self.steps):
            for task in self.first:
                yield _moved(task, step)


@dataclass(frozen=True, eq=False)
class RepeatedNumbers(Mapping[Key, int]):
    """Numbers of these tasks by their keys, which are ``TaskKey``."""

    first: Mapping[Key, int]
    steps: int

    def __getitem__(self, key: Key) -> int:
        if not isinstance(key, TaskKey) or not 0 <= key.step < self.steps:
            raise KeyError(key)
        return self.first[key._replace(step=0)] + key.step * len(self.first)

    def __iter__(self) -> Iterator[Key]:
        return (_later(key, step) for step in range(self.steps) for key in self.first)

    def __len__(self) -> int:
        return self.steps * len(self.first)


def repeated(first: TaskColumns, steps: int) -> TaskColumns:
    """Repeat the tasks of the first step; in later ones a rank starts when it has ended the step before.

    Args:
        first: tasks of step 0, whose keys are ``TaskKey``; those of kind ``start`` wait for nothing.
        steps: how many there are then.
    """
    many = len(first.tasks)
    starts = np.array([at for at, task in enumerate(first.tasks) if task.key[1] == "start"], np.int64)
    ends = [first.numbers[TaskKey(0, "end", first.tasks[at].key[2], 0)] - many for at in starts.tolist()]  # type: ignore[misc]
    waits = np.diff(first.begins)
    waits[starts] += 1
    befores = np.insert(first.befores, first.begins[starts], np.array(ends, np.int32))
    later = np.arange(1, steps, dtype=np.int32)[:, None] * np.int32(many)
    begins = np.concatenate(
        [first.begins[:1], np.cumsum(np.concatenate([np.diff(first.begins), *[waits] * (steps - 1)]))]
    )
    return replace(
        first,
        tasks=RepeatedTasks(first.tasks, steps),
        numbers=RepeatedNumbers(first.numbers, steps),
        begins=begins,
        befores=np.concatenate([first.befores, (befores + later).ravel()]),
        duration_s=_tiled(first.duration_s, steps),
        gap_s=_tiled(first.gap_s, steps),
        priority=_tiled(first.priority, steps),
        resources=_tiled(first.resources, steps),
        way=_tiled(first.way, steps),
        bytes=_tiled(first.bytes, steps),
        count=_tiled(first.count, steps),
    )


def _tiled(column: NDArray[Any], steps: int) -> NDArray[Any]:
    return same_for(steps * len(column), column[:1]) if column.strides == (0,) else np.tile(column, steps)


def _later(key: Key, step: int) -> TaskKey:
    assert isinstance(key, TaskKey)
    return key._replace(step=key.step + step)


def _moved(task: Task, step: int) -> Task:
    key = _later(task.key, step)
    waits = (
        [TaskKey(step - 1, "end", key.rank, 0)] if key.kind == "start" else [_later(one, step) for one in task.after]
    )
    return Task(key, task.duration, task.resources, tuple(waits), task.priority, task.gap_s, task.label, task.flow)
