"""The code vector in C++, compiled on first use and kept in the cache: how often code runs is found out there alone."""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cdmpp.devices.cores import Core
from cdmpp.errors import CdmppError
from cdmpp.machine_code.cpu.flow import FunctionFlow
from cdmpp.machine_code.cpu.operation import OPERATIONS
from cdmpp.machine_code.cpu.tables import TOTALS, header
from cdmpp.platform.native_library import compiled_once
from cdmpp.platform.paths import cache_root

SOURCES = Path(__file__).parent / "native"
_FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC", "-fwrapv", "-ffp-contract=off")
_NUMBERS = (
    *("issue_width", "window", "load_ports", "load_bytes", "store_ports", "store_bytes", "store_bytes_per_cycle"),
    *("load_latency", "vector_load_latency", "forward_cycles", "blocked_cycles", "masked_forward_cycles"),
    *("aliased_cycles", "masked_store_cycles", "scatter_cycles_per_lane", "l1_sets", "l1_ways", "l2_sets", "l2_ways"),
)
_FLOW_BYTES = 1 << 20


class CodeLibrary(NamedTuple):
    """Functions of the compiled library."""

    amounts: Callable[..., int]
    flows: Callable[..., int]


def native_code() -> CodeLibrary | None:
    """The compiled library, or None (with one warning) where it cannot be had; compiles (about 20 s) on first use."""
    return None if os.environ.get("CDMPP_NATIVE", "1") == "0" else _loaded(cache_root())


@functools.cache
def _loaded(_cache: Path) -> CodeLibrary | None:
    """Of the library in a cache: another one, as after a change of ``$CDMPP_CACHE``, has to get its own."""
    try:
        library = ctypes.CDLL(str(compiled_once("code", SOURCES / "code_vector.cpp", ("tables.h", header()), _FLAGS)))
    except (CdmppError, OSError) as error:
        warnings.warn(
            f"machine code cannot be read ({error}): programs are predicted from their ASTs alone, much worse. "
            "Install a C++ compiler; CDMPP_NATIVE=0 silences this.",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    text = (ctypes.c_char_p, ctypes.c_int64)
    library.code_amounts.argtypes = [*text, *text, ctypes.c_void_p, ctypes.c_void_p]
    library.code_flows.argtypes = [*text, *text, ctypes.c_void_p, ctypes.c_int64]
    library.code_flows.restype = ctypes.c_int64
    return CodeLibrary(library.code_amounts, library.code_flows)


def native_amounts(llvm_ir: str, assembly: str, core: Core) -> dict[str, float] | None:
    """``TOTALS`` of a program; None without a compiled library, and where C++ cannot read the texts."""
    library = native_code()
    if library is None or not (llvm_ir.isascii() and assembly.isascii()):
        return None
    totals, numbers = np.zeros(len(TOTALS)), _core_numbers(core)
    if not library.amounts(*_sized(llvm_ir, assembly), numbers.ctypes.data, totals.ctypes.data):
        return None
    return dict(zip(TOTALS, totals.tolist(), strict=True))


def native_flows(llvm_ir: str, assembly: str = "") -> tuple[dict[str, FunctionFlow], dict[str, FunctionFlow]] | None:
    """How the functions of a program run, by name: of its IR, and of its x86-64 ``assembly`` where that is given.

    None without a compiled library, and where C++ cannot read the texts.
    """
    library = native_code()
    if library is None or not (llvm_ir.isascii() and assembly.isascii()):
        return None
    room = _FLOW_BYTES
    while True:
        out = ctypes.create_string_buffer(room)
        size = library.flows(*_sized(llvm_ir, assembly), out, room)
        if size < 0:
            return None
        if size <= room:
            break
        room = size
    flows: dict[str, dict[str, FunctionFlow]] = {"I": {}, "M": {}}
    for line in out.raw[:size].decode().splitlines():
        kind, name, number, *rest = line.split("\t")
        if kind in flows:
            flow = flows[kind][name] = FunctionFlow(float(number), float(rest[0]))
        elif kind == "B":
            flow.runs[name] = float(number)
        else:
            flow.entries[name], flow.bodies[name] = float(number), frozenset(rest)
    return flows["I"], flows["M"]


def _sized(*texts: str) -> list[bytes | int]:
    return [part for text in texts for part in (text.encode(), len(text))]


def _core_numbers(core: Core) -> np.ndarray:
    """(n,) float64: a core as ``native/operation.h`` reads it."""
    units = [
        (sum(1 << port for port in unit.ports), unit.latency, unit.busy, unit.slots)
        for name in OPERATIONS
        for unit in core.units[name]
    ]
    numbers = [core[name] for name in _NUMBERS]
    return np.array([*numbers, len(core.port_names), *np.ravel(units)], np.float64)
