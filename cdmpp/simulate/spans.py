"""Spans: what ran when, by key; each is made when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdmpp.simulate.key import Key
from cdmpp.simulate.task import Task


class Span(NamedTuple):
    """A span is a task that ran."""

    task: Task
    start_s: float
    end_s: float
    cause: Key | None
    """Key of the task that it waited for last: an input, or what held a resource before. None: it started at once."""


class Spans(Mapping[Key, Span]):
    """Spans in the order of their starts."""

    def __init__(
        self, tasks: Sequence[Task], numbers: Mapping[Key, int], order: NDArray[np.int32],
        start_s: NDArray[np.float64], end_s: NDArray[np.float64], cause: NDArray[np.int32],
    ) -> None:  # fmt: skip
        """Take the columns.

        Args:
            tasks: by number.
            numbers: of the tasks, by key.
            order: (n,) numbers of the tasks as they started.
            start_s: (n,) by number.
            end_s: (n,) by number.
            cause: (n,) by number: that of what a task waited for last; negative: nothing.
        """
        self._tasks, self._numbers, self._order = tasks, numbers, order
        self._start_s, self._end_s, self._cause = start_s, end_s, cause

    def of(self, numbers: range) -> dict[Key, Span]:
        """Return the spans of some tasks, which follow each other by number, in the order of their starts."""
        found = (self._span(number) for number in self._started(numbers).tolist())
        return {span.task.key: span for span in found}

    def last(self, numbers: range) -> Span:
        """Return the one of them that ended last; of several the one that started first."""
        started = self._started(numbers)
        return self._span(started.item(int(np.argmax(self._end_s[started]))))

    def _started(self, numbers: range) -> NDArray[np.int32]:
        return self._order[(self._order >= numbers.start) & (self._order < numbers.stop)]

    def __getitem__(self, key: Key) -> Span:
        return self._span(self._numbers[key])

    def _span(self, number: int) -> Span:
        before = self._cause.item(number)
        cause = None if before < 0 else self._tasks[before].key
        return Span(self._tasks[number], self._start_s.item(number), self._end_s.item(number), cause)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._order)

    def items(self):  # type: ignore[no-untyped-def,override]
        """Return keys and spans, in the order of starts."""
        return self._all.items()

    def values(self):  # type: ignore[no-untyped-def,override]
        """Return the spans, in the order of starts."""
        return self._all.values()

    @cached_property
    def _all(self) -> dict[Key, Span]:
        tasks = list(self._tasks)
        keys = [task.key for task in tasks]
        causes = [*keys, None]  # of what waited for nothing: number -1
        start_s, end_s, cause = self._start_s.tolist(), self._end_s.tolist(), self._cause.tolist()
        return {
            keys[number]: Span(tasks[number], start_s[number], end_s[number], causes[cause[number]])
            for number in self._order.tolist()
        }
