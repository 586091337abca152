"""The follower of action lists, in C++: ``native/action_lists.cpp``."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.platform.extension import extension
from cdmpp.steps.action_lists import ActionLists

Floats = NDArray[np.float64]


@functools.cache
def native_lists() -> ctypes.CDLL:
    """Load the compiled library; ``MissingToolError`` where it was not built."""
    library = ctypes.CDLL(str(extension("action_lists")))
    number, array = ctypes.c_int64, ctypes.c_void_p
    lists: tuple[Any, ...] = (number, number, number, array, array, array, number)
    library.list_seconds.argtypes = [*lists, array, array, array, number, array, array, array]
    library.list_bytes.argtypes = [*lists, array, number, array]
    library.list_bytes.restype = None
    return library


def followed_s(
    lists: ActionLists, seconds: Floats, ending: Floats, updates: Floats, steps: int, marks: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Follow steps of several plans pass by pass.

    Args:
        lists: of all ranks.
        seconds: (plans, 6 stages) of a pass of each kind of ``KINDS`` of each stage, then of messages to it in the
            forward and in the backward pass.
        ending: (plans, stages) of what follows the last backward pass of each stage.
        updates: (plans, ranks) of what follows the last pass of each rank.
        steps: followed one after the other.
        marks: two backward passes of the last stage, by number.

    Returns:
        (plans,) seconds of the last step from the end of the one before, and from the end of the second mark in it to
        that of the first.

    Raises:
        RecursionError: lists that wait for each other.
    """
    given = [np.ascontiguousarray(one, np.float64) for one in (seconds, ending, updates)]
    places, step_s, round_s = np.array(marks, np.int64), np.empty(len(seconds)), np.empty(len(seconds))
    arrays = _arrays(lists)
    is_followed = native_lists().list_seconds(
        lists.ranks, lists.stages, lists.micro_batches, *(one.ctypes.data for one in arrays), len(seconds),
        *(one.ctypes.data for one in given), steps, places.ctypes.data, step_s.ctypes.data, round_s.ctypes.data,
    )  # fmt: skip
    if not is_followed:
        raise RecursionError("the lists of a schedule wait for each other")
    return step_s, round_s


def most_bytes(lists: ActionLists, live: Floats, kept: int) -> Floats:
    """Return the most bytes of results that each rank holds at a time, (plans, ranks).

    Args:
        lists: of all ranks.
        live: (plans, stages, 4) bytes that a micro-batch saves, that wait between both parts of its backward pass, that
            live while one of its passes runs, and that it hands on.
        kept: micro-batches whose outputs the last stage keeps.
    """
    given, found = np.ascontiguousarray(live, np.float64), np.zeros((len(live), lists.ranks))
    arrays = _arrays(lists)
    native_lists().list_bytes(
        lists.ranks, lists.stages, lists.micro_batches, *(one.ctypes.data for one in arrays), len(given),
        given.ctypes.data, kept, found.ctypes.data,
    )  # fmt: skip
    return found


def _arrays(lists: ActionLists) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    columns = np.ascontiguousarray(lists.columns, np.int32)
    return np.ascontiguousarray(lists.begins, np.int64), columns, np.array(lists.owners, np.int32)
