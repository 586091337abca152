"""The compiled library of the model, ``native/network.cpp``: how Python calls it."""

from __future__ import annotations

import ctypes
import functools

from cdmpp.platform.extension import extension


@functools.cache
def native_network() -> ctypes.CDLL:
    """Load the compiled library; ``MissingToolError`` where it was not built."""
    library = ctypes.CDLL(str(extension("network")))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, arguments, result in (
        ("quantities", (), ctypes.c_char_p),
        ("numbers", (), ctypes.c_char_p),
        ("new", (pointer,) * 5, pointer),
        ("delete", (pointer,), None),
        ("answers", (pointer, pointer, pointer, number, pointer, ctypes.c_int32), None),
        ("trainer_new", (pointer,) * 5, pointer),
        ("trainer_delete", (pointer,), None),
        ("forward", (*(pointer,) * 6, number, pointer, pointer, ctypes.c_int32), pointer),
        ("backward", (pointer, pointer, number, pointer, pointer, pointer, ctypes.c_int32), None),
        ("pass_delete", (pointer,), None),
        ("pooled", (pointer, pointer, pointer, number, number, pointer), None),
        ("ranker_new", (pointer, number, number, number, ctypes.c_float), pointer),
        ("ranker_delete", (pointer,), None),
        ("ranker_gradients", (pointer, pointer, number, ctypes.c_int32), None),
        ("ranker_scores", (pointer, pointer, number, pointer), None),
        ("compare", (pointer, pointer, pointer, pointer, number, pointer, pointer), None),
    ):
        function = getattr(library, f"network_{name}")
        function.argtypes, function.restype = arguments, result
    return library


def names_of(what: str) -> list[str]:
    """Return the names of a kernel's ``quantities`` or a device's ``numbers`` that the library reads, in order."""
    told: bytes = getattr(native_network(), f"network_{what}")()
    return told.decode().strip(",").split(",")
