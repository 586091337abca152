"""The executor and timer of warps, in C++: ``native/warp.h`` and ``native/resident.h``."""

from __future__ import annotations

import ctypes
import functools

from cdmpp.platform.extension import extension


@functools.cache
def native_library() -> ctypes.CDLL:
    """Load the compiled library; ``MissingToolError`` where it was not built."""
    library = ctypes.CDLL(str(extension("gpu_code")))
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.resident_cycles.restype = None
    library.resident_cycles.argtypes = [pointer, pointer, count, pointer, pointer, count, pointer]
    library.warp_steps.restype = ctypes.c_int64
    library.warp_steps.argtypes = [pointer, ctypes.c_char_p, pointer, pointer, pointer, pointer]
    return library
