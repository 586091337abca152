"""The event engine, in C++: ``native/engine.cpp``."""

from __future__ import annotations

import ctypes
import functools

from cdmpp.platform.extension import extension

DONE, ENDED, ASKS, STUCK, NO_RATE = range(5)
"""Why the engine stopped: all tasks have ended; one has, and the policy is asked; one asks for its duration; some wait
for each other; one sends over a link without a rate."""


class State(ctypes.Structure):
    """Time and task at which the engine stops."""

    _fields_ = (
        ("now_s", ctypes.c_double),
        ("start_s", ctypes.c_double),
        ("count", ctypes.c_int64),
        ("slot", ctypes.c_int32),
        ("cause", ctypes.c_int32),
    )
    now_s: float
    start_s: float
    """The task that ended had begun then."""
    count: int
    """Tasks in a circle."""
    slot: int
    """The slot of the task that ended, asks, has no rate, or is the first one of a circle."""
    cause: int
    """The slot of what the task that ended had waited for last; negative: nothing."""


@functools.cache
def native_engine() -> ctypes.CDLL:
    """Load the compiled library; ``MissingToolError`` where it was not built."""
    library = ctypes.CDLL(str(extension("engine")))
    engine, array, slot, number, real = (
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_double,
    )  # fmt: skip
    for name, arguments, result in (
        ("new", (number, array, slot, slot), engine),
        ("delete", (engine,), None),
        ("state", (engine,), ctypes.POINTER(State)),
        ("set", (engine, number, array), slot),
        ("way", (engine, number, array), slot),
        ("add", (engine, real, real, real, slot, slot, real, number), slot),
        ("link", (engine, slot, number, array), None),
        ("begin", (engine, number, *(array,) * 10), None),
        ("go_on", (engine,), slot),
        ("answer", (engine, real), None),
        ("spans", (engine, array, array, array, array), None),
    ):
        function = getattr(library, f"engine_{name}")
        function.argtypes, function.restype = arguments, result
    return library


@functools.cache
def native_reader() -> ctypes.PyDLL:
    """Load what reads Python objects from the same library: it is called with the interpreter's lock held."""
    library = ctypes.PyDLL(str(extension("engine")))
    reader, array, number, given = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.py_object
    for name, arguments, result in (
        ("new", (number,), reader),
        ("delete", (reader,), None),
        ("at", (reader,), number),
        ("read", (reader, given, given, given, *(array,) * 8, given, array), ctypes.c_int32),
        ("read_inputs", (reader, array, array), ctypes.c_int32),
    ):
        function = getattr(library, f"reader_{name}")
        function.argtypes, function.restype = arguments, result
    return library
