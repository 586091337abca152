"""The C++ twin of the code vector: compiled on first use, kept in the cache, and optional."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cdmpp.cores import Core
from cdmpp.errors import CdmppError
from cdmpp.machine_code.nesting import pairs_of_least_cost
from cdmpp.machine_code.operation import OPERATIONS
from cdmpp.machine_code.tables import TOTALS, header
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


def _build() -> Path:
    """Path of the compiled library; compiles (about 15 s) where this source was not compiled before."""
    tables = header()
    digest = hashlib.sha256(repr((tables, _FLAGS, platform.machine())).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    target = cache_root() / "native" / f"code-{digest.hexdigest()[:20]}.so"
    if target.exists():
        return target
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        raise CdmppError("no C++ compiler (c++, g++ or clang++) on the path")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        Path(folder, "tables.h").write_text(tables)
        library = Path(folder) / target.name
        command = [compiler, *_FLAGS, f"-I{folder}", f"-I{SOURCES}", str(SOURCES / "code_vector.cpp")]
        built = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True)
        if built.returncode:
            raise CdmppError(built.stderr.strip()[-300:])
        os.replace(library, target)
    return target


@functools.cache
def native_code() -> Callable[..., int] | None:
    """The compiled function, or None (with one warning) where it cannot be had."""
    if os.environ.get("CDMPP_NATIVE", "1") == "0":
        return None
    try:
        entry = ctypes.CDLL(str(_build())).code_amounts
    except (CdmppError, OSError) as error:
        warnings.warn(
            f"the native code vector could not be built ({error}); the Python version gives the same numbers, slower. "
            "CDMPP_NATIVE=0 silences this.",
            RuntimeWarning,
            stacklevel=3,
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
