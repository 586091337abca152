"""Fields of many tasks as arrays, read by the compiled engine from the Python objects themselves."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class TaskReader:
    """It reads a list of tasks twice: first their fields, then the numbers of their inputs."""

    library: ctypes.PyDLL
    handle: int

    def read(
        self, tasks: list[Task], duration_s: NDArray[Any], gap_s: NDArray[Any], priority: NDArray[Any],
        resources: NDArray[Any], sends: NDArray[Any], begins: NDArray[Any], sets: list[tuple[Key, ...]],
    ) -> int | None:  # fmt: skip
        """Fill the columns of ``TaskColumns``, which have an element a task, and ``sets``, which is empty.

        Args:
            tasks: as many as the reader is for.
            duration_s: float64, and so ``gap_s`` and ``priority``.
            gap_s: as of ``TaskColumns``, and so all others but ``sends``.
            priority: as there.
            resources: int32.
            sends: bool, whether a task has a flow.
            begins: int64, with an element more.
            sets: as there.

        Returns:
            The number of the first task whose key was there before, or None.
        """
        fault, arrays = Fault(), (duration_s, gap_s, priority, resources, sends, begins)
        self.library.reader_read(
            self.handle, tasks, None, *(one.ctypes.data for one in arrays), sets, ctypes.byref(fault)
        )  # fmt: skip
        return None if fault.at < 0 else fault.at

    def read_inputs(self, befores: NDArray[Any]) -> tuple[int, int] | None:
        """Fill ``befores``, int32; return the number of the first task with an input that is no task, and its place."""
        fault = Fault()
        self.library.reader_read_inputs(self.handle, befores.ctypes.data, ctypes.byref(fault))
        return None if fault.at < 0 else (fault.at, fault.place)


@contextmanager
def reading(tasks: int) -> Iterator[TaskReader]:
    """Make a reader of so many tasks, which keeps what it has read of them until the end."""
    library = native_reader()
    handle = library.reader_new(tasks)
    try:
        yield TaskReader(library, handle)
    finally:
        library.reader_delete(handle)
