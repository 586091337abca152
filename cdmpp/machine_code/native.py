"""The C++ twin of the code vector: compiled on first use, kept in the cache, and optional."""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cdmpp.cores import Core
from cdmpp.errors import CdmppError
from cdmpp.machine_code.nesting import pairs_of_least_cost
from cdmpp.machine_code.operation import OPERATIONS
from cdmpp.machine_code.tables import TOTALS, header
from cdmpp.native_library import compiled_once
from cdmpp.paths import cache_root

SOURCES = Path(__file__).parent / "native"
_FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC", "-fwrapv", "-ffp-contract=off")
_NUMBERS = (
    *("issue_width", "window", "load_ports", "load_bytes", "store_ports", "store_bytes", "store_bytes_per_cycle"),
    *("load_latency", "vector_load_latency", "forward_cycles", "blocked_cycles", "masked_forward_cycles"),
    *("aliased_cycles", "masked_store_cycles", "scatter_cycles_per_lane", "l1_sets", "l1_ways", "l2_sets", "l2_ways"),
)
_Doubles, _Longs = ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_int64)
_Assign = ctypes.CFUNCTYPE(None, _Doubles, ctypes.c_int64, _Doubles, ctypes.c_int64, _Doubles, _Longs)


def native_code() -> Callable[..., int] | None:
    """The compiled function, or None (with one warning) where it cannot be had; compiles (about 15 s) on first use."""
    return None if os.environ.get("CDMPP_NATIVE", "1") == "0" else _loaded(cache_root())


@functools.cache
def _loaded(_cache: Path) -> Callable[..., int] | None:
    """Of the library in a cache: another one, as after a change of ``$CDMPP_CACHE``, has to get its own."""
    try:
        entry = ctypes.CDLL(
            str(compiled_once("code", SOURCES / "code_vector.cpp", ("tables.h", header()), _FLAGS))
        ).code_amounts
    except (CdmppError, OSError) as error:
        warnings.warn(
            f"the native code vector could not be built ({error}); the Python version gives the same numbers, slower. "
            "CDMPP_NATIVE=0 silences this.",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    text = (ctypes.c_char_p, ctypes.c_int64)
    entry.argtypes = [*text, *text, ctypes.c_void_p, _Assign, ctypes.c_void_p]
    return entry


def native_amounts(llvm_ir: str, assembly: str, core: Core) -> dict[str, float] | None:
    """``TOTALS`` of a program; None without a compiled library, and where C++ leaves it to the readable version."""
    entry = native_code()
    if entry is None or not (llvm_ir.isascii() and assembly.isascii()):
        return None
    texts = (llvm_ir.encode(), assembly.encode())
    totals = np.zeros(len(TOTALS))
    numbers = _core_numbers(core)
    sized = [part for text in texts for part in (text, len(text))]
    if not entry(*sized, numbers.ctypes.data, _assign, totals.ctypes.data):
        return None
    return dict(zip(TOTALS, totals.tolist(), strict=True))


def _core_numbers(core: Core) -> np.ndarray:
    """(n,) float64: a core as ``native/operation.h`` reads it."""
    units = [
        (sum(1 << port for port in unit.ports), unit.latency, unit.busy, unit.slots)
        for name in OPERATIONS
        for unit in core.units[name]
    ]
    numbers = [core[name] for name in _NUMBERS]
    return np.array([*numbers, len(core.port_names), *np.ravel(units)], np.float64)


@_Assign
def _assign(left, n, right, m, extra, partners) -> None:  # type: ignore[no-untyped-def]  # ctypes hands pointers
    sizes, others = (np.ctypeslib.as_array(sizes, (count, 4)) for sizes, count in ((left, n), (right, m)))
    found = dict(pairs_of_least_cost(sizes, others, np.ctypeslib.as_array(extra, (n, m))))
    for i in range(n):
        partners[i] = found.get(i, -1)
