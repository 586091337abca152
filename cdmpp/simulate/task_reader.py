"""Fields of many tasks as arrays, read by the compiled engine from the Python objects themselves."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.simulate.key import Key
from cdmpp.simulate.native import native_reader
from cdmpp.simulate.task import Task


class Fault(ctypes.Structure):
    """This says what is wrong with tasks."""

    _fields_ = (("at", ctypes.c_int64), ("place", ctypes.c_int64))
    at: int
    """The number of a task whose key was there before, or with an input that is no task; negative: all is well."""
    place: int
    """Place of that input."""


@functools.cache
def _offsets() -> NDArray[np.int64] | None:
    """Bytes from the beginning of a task to its class and to its fields; None where they are not found there."""
    probe, marks = object.__new__(Task), [object() for _ in _FIELDS]
    for name, mark in zip(_FIELDS, marks, strict=True):
        object.__setattr__(probe, name, mark)
    size = ctypes.sizeof(ctypes.c_void_p)
    words = list((ctypes.c_size_t * (Task.__basicsize__ // size)).from_address(id(probe)))
    wanted = [id(Task), *map(id, marks)]
    return np.array([size * words.index(one) for one in wanted]) if {*wanted} <= {*words} else None


_FIELDS = ("key", "duration", "resources", "after", "priority", "gap_s", "flow")
"""In the order of the compiled reader."""


@dataclass(frozen=True)
class TaskReader:
    """It reads a list of tasks twice: first their fields, then the numbers of their inputs.

    A task that is of ``Task`` itself is read from its memory, one of another class by the names of its fields.
    """

    library: ctypes.PyDLL
    handle: int

    def read(
        self, tasks: list[Task], duration_s: NDArray[Any], gap_s: NDArray[Any], priority: NDArray[Any],
        resources: NDArray[Any], sends: NDArray[Any], begins: NDArray[Any], varies: NDArray[Any],
        sets: list[tuple[Key, ...]],
    ) -> int | None:  # fmt: skip
        """Fill the columns of ``TaskColumns``, which have an element a task, and ``sets``, which is empty.

        Args:
            tasks: as many as the reader is for.
            duration_s: float64, and so ``gap_s`` and ``priority``.
            gap_s: as of ``TaskColumns``, and so all others but ``sends`` and ``varies``.
            priority: as there.
            resources: int32.
            sends: bool, whether a task has a flow.
            begins: int64, with an element more.
            varies: bool, (2,), whether ``gap_s`` and ``priority`` do; else only their first element is filled.
            sets: as there.

        Returns:
            The number of the first task whose key was there before, or None.

        Raises:
            Exception: Python's own, with a note that says which task cannot be read.
        """
        fault, arrays, offsets = Fault(), (duration_s, gap_s, priority, resources, sends, begins, varies), _offsets()
        with self._noting(tasks):
            self.library.reader_read(
                self.handle, tasks, None, Task, None if offsets is None else offsets.ctypes.data,
                *(one.ctypes.data for one in arrays), sets, ctypes.byref(fault),
            )  # fmt: skip
        return None if fault.at < 0 else fault.at

    def read_inputs(self, tasks: list[Task], befores: NDArray[Any]) -> tuple[int, int] | None:
        """Fill ``befores``, int32; return the number of the first task with an input that is no task, and its place."""
        fault = Fault()
        with self._noting(tasks):
            self.library.reader_read_inputs(self.handle, befores.ctypes.data, ctypes.byref(fault))
        return None if fault.at < 0 else (fault.at, fault.place)

    @contextmanager
    def _noting(self, tasks: list[Task]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            at = self.library.reader_at(self.handle)
            error.add_note(f"so it was with task number {at}, {getattr(tasks[at], 'key', tasks[at])!r}")
            raise


@contextmanager
def reading(tasks: int) -> Iterator[TaskReader]:
    """Make a reader of so many tasks, which keeps what it has read of them until the end."""
    library = native_reader()
    handle = library.reader_new(tasks)
    try:
        yield TaskReader(library, handle)
    finally:
        library.reader_delete(handle)
