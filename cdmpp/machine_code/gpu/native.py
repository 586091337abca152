"""The C++ twin of ``warp.py`` and ``resident.py``: compiled on first use, kept in the cache, and optional."""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from pathlib import Path

import numpy as np

from cdmpp.devices.gpu_core import GpuCore
from cdmpp.errors import CdmppError, DataError
from cdmpp.machine_code.gpu import sass_fields
from cdmpp.machine_code.gpu.resident import (
    L2_QUEUE,
    MEMORY_QUEUE,
    OPERANDS_CYCLES,
    SPECIAL_QUEUE,
    Residents,
    Timed,
)
from cdmpp.machine_code.gpu.sass import INSTRUCTION_BYTES, SassKernel
from cdmpp.machine_code.gpu.warp import FAULTS, TRACE, WarpRun
from cdmpp.machine_code.gpu.warp_memory import LINE_SECTORS, SECTOR_BYTES
from cdmpp.machine_code.gpu.warp_state import POINTERS, POINTERS_APART, Launch, abi_of
from cdmpp.platform.native_library import compiled_once
from cdmpp.platform.paths import cache_root

SOURCES = Path(__file__).parent / "native"
_FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC", "-fwrapv", "-ffp-contract=off")


def header() -> str:
    """``rows.h``: the numbers that both twins share."""
    names = {
        "INSTRUCTION_BYTES": INSTRUCTION_BYTES,
        "SECTOR_BYTES": SECTOR_BYTES,
        "LINE_SECTORS": LINE_SECTORS,
        "REGISTERS": sass_fields.REGISTERS,
        "PREDICATES": sass_fields.PREDICATES,
        "ZERO_REGISTER": sass_fields.ZERO,
        "UNIFORM_REGISTERS": sass_fields.UNIFORM,
        "UNIFORM_ZERO_REGISTER": sass_fields.UNIFORM_ZERO,
        "TRUE_PREDICATE": sass_fields.TRUE,
        "UNIFORM_PREDICATE_PLACE": sass_fields.UNIFORM_PREDICATES,
        "NEGATED_FLAG": sass_fields.NEGATED,
        "INVERTED_FLAG": sass_fields.INVERTED,
        "MAGNITUDE_FLAG": sass_fields.MAGNITUDE,
        "POINTERS_APART": POINTERS_APART,
        "SPECIAL_QUEUE": SPECIAL_QUEUE,
        "MEMORY_QUEUE": MEMORY_QUEUE,
        "L2_QUEUE": L2_QUEUE,
        "OPERANDS_CYCLES": OPERANDS_CYCLES,
    }
    lines = ["#pragma once", "#include <cstdint>", "namespace sass {"]
    lines += [f"constexpr int64_t {name} = {value};" for name, value in names.items()]
    lines.append(f"constexpr uint64_t POINTERS = {POINTERS}ull;")
    enums = {
        "Field": [name.upper() for name in sass_fields.FIELDS] + ["FIELD_COUNT"],
        "Kind": [one.name for one in sass_fields.Kind],
        "Space": [f"SPACE_{one.name}" for one in sass_fields.Space],
        "Pipe": [f"PIPE_{one.name}" for one in sass_fields.Pipe],
        "Source": [f"SOURCE_{one.name}" for one in sass_fields.Source],
    }
    lines += [f"enum {name} : int64_t {{ {', '.join(members)} }};" for name, members in enums.items()]
    return "\n".join([*lines, "}  // namespace sass", ""])


@functools.cache
def _loaded(_cache: Path) -> ctypes.CDLL | None:
    """Of the library in a cache: another one, as after a change of ``$CDMPP_CACHE``, has to get its own."""
    try:
        library = ctypes.CDLL(str(compiled_once("sass", SOURCES / "sass.cpp", ("rows.h", header()), _FLAGS)))
    except (CdmppError, OSError) as error:
        warnings.warn(
            f"the native reading of GPU code could not be built ({error}); the Python version gives the same numbers, "
            "far slower. CDMPP_NATIVE=0 silences this.",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.resident_cycles.restype = None
    library.resident_cycles.argtypes = [pointer, pointer, count, pointer, pointer, count, pointer]
    library.warp_steps.restype = ctypes.c_int64
    library.warp_steps.argtypes = [ctypes.c_void_p, ctypes.c_char_p, *[ctypes.c_void_p] * 4]
    return library


def native_library() -> ctypes.CDLL | None:
    """The compiled library, or None (with one warning) where it cannot be had."""
    return None if os.environ.get("CDMPP_NATIVE", "1") == "0" else _loaded(cache_root())


def native_warp(
    kernel: SassKernel,
    rows: np.ndarray,
    launch: Launch,
    block: int,
    warp: int,
    limit: int,
    literals: bytes = b"",
) -> WarpRun | None:
    """As ``run_warp``; None without a compiled library."""
    library = native_library()
    if library is None:
        return None
    arguments_at, stack_at = abi_of(kernel.arch)
    numbers = np.array(
        [len(rows), kernel.stack_bytes, arguments_at, stack_at, len(literals), *launch.grid, *launch.block, block, warp]
        + [limit],
        np.int64,
    )
    table, steps = np.ascontiguousarray(rows, np.int64), np.zeros(limit, TRACE)
    ended, where = np.zeros(1, np.int64), np.zeros(1, np.int64)
    pointers = [array.ctypes.data for array in (numbers, steps, ended, where)]
    count = library.warp_steps(table.ctypes.data, literals, *pointers)
    if count < 0:
        raise DataError(FAULTS[-2 - count].format(at=int(where[0]), stack=kernel.stack_bytes))
    return WarpRun(steps[:count].copy(), bool(ended[0]))


_CORE_NUMBERS = (
    *("fma_cycles", "alu_cycles", "special_cycles", "special_latency", "shared_latency", "store_latency"),
    *("l1_latency", "l2_latency", "l1_sectors_per_cycle", "l1_lines_per_cycle", "l2_sectors_per_cycle"),
    *("store_sectors_per_cycle", "merged_share", "barrier_cycles"),
)
"""In the order of ``native/resident.h``."""


def native_residents(
    rows: np.ndarray, trace: np.ndarray, core: GpuCore, residents: Residents, most_issued: int
) -> Timed | None:
    """As ``run_residents``; None without a compiled library."""
    library = native_library()
    if library is None:
        return None
    table, steps = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(trace, TRACE)
    numbers, shared, found = np.array([core[name] for name in _CORE_NUMBERS]), np.array(residents, float), np.zeros(3)
    library.resident_cycles(
        table.ctypes.data, steps.ctypes.data, len(steps), numbers.ctypes.data, shared.ctypes.data, most_issued,
        found.ctypes.data,
    )  # fmt: skip
    return Timed(*found.tolist())
