"""RepeatedTasks: equal steps one after the other, of which only the first one is there as tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from cdmpp.simulate.key import Key
from cdmpp.simulate.task import Task
from cdmpp.simulate.task_columns import TaskColumns
from cdmpp.steps.derived import derived
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
        duration_s=np.tile(first.duration_s, steps),
        gap_s=np.tile(first.gap_s, steps),
        priority=np.tile(first.priority, steps),
        resources=np.tile(first.resources, steps),
        way=np.tile(first.way, steps),
        bytes=np.tile(first.bytes, steps),
        count=np.tile(first.count, steps),
    )


def _later(key: Key, step: int) -> TaskKey:
    assert isinstance(key, TaskKey)
    return key._replace(step=key.step + step)


def _moved(task: Task, step: int) -> Task:
    key = _later(task.key, step)
    if key.kind == "start":
        return derived(task, key=key, after=(TaskKey(step - 1, "end", key.rank, 0),))
    return derived(task, key=key, after=tuple([_later(one, step) for one in task.after]))
