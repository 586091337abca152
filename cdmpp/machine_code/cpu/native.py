"""The reader of CPUs' machine code, in C++: ``native/code_vector.cpp``."""

from __future__ import annotations

import ctypes
import functools

import numpy as np

from cdmpp.devices.cores import Core
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.code_features import CODE_NAMES
from cdmpp.machine_code.cpu.operation import OPERATIONS
from cdmpp.platform.extension import extension

TOTALS = (*CODE_NAMES, "hottest_total", "hottest_machine_total")
"""Amounts that C++ adds up, in its order; the last two give the shares of the hottest code."""
_NUMBERS = (
    *("issue_width", "window", "load_ports", "load_bytes", "store_ports", "store_bytes", "store_bytes_per_cycle"),
    *("load_latency", "vector_load_latency", "forward_cycles", "blocked_cycles", "masked_forward_cycles"),
    *("aliased_cycles", "masked_store_cycles", "scatter_cycles_per_lane", "l1_sets", "l1_ways", "l2_sets", "l2_ways"),
)


@functools.cache
def native_code() -> ctypes.CDLL:
    """Load the compiled library; ``MissingToolError`` where it was not built."""
    library = ctypes.CDLL(str(extension("cpu_code")))
    text = (ctypes.c_char_p, ctypes.c_int64)
    library.code_amounts.argtypes = [*text, *text, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64]
    library.code_flows.argtypes = [*text, *text, ctypes.c_void_p, ctypes.c_int64]
    library.code_flows.restype = ctypes.c_int64
    return library


def native_amounts(llvm_ir: str, assembly: str, core: Core) -> dict[str, float]:
    """Count the ``TOTALS`` of a program on ``core``; ``DataError`` where its texts cannot be read."""
    reason = ctypes.create_string_buffer(1 << 12)
    if llvm_ir.isascii() and assembly.isascii():
        totals, numbers = np.zeros(len(TOTALS)), _core_numbers(core)
        texts = llvm_ir.encode(), len(llvm_ir), assembly.encode(), len(assembly)
        places = numbers.ctypes.data, totals.ctypes.data, reason, len(reason) - 1
        if native_code().code_amounts(*texts, *places):
            return dict(zip(TOTALS, totals.tolist(), strict=True))
    raise DataError(reason.value.decode() or "the text of the program holds what machine code is not expected to hold")


def _core_numbers(core: Core) -> np.ndarray:
    """(n,) float64: a core, as ``native/operation.h`` reads it."""
    units = [
        (sum(1 << port for port in unit.ports), unit.latency, unit.busy, unit.slots)
        for name in OPERATIONS
        for unit in core.units[name]
    ]
    numbers = [core[name] for name in _NUMBERS]
    return np.array([*numbers, len(core.port_names), *np.ravel(units)], np.float64)
