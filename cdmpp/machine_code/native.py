"""The C++ twin of the pipeline: compiled on first use, kept in the cache, and optional."""

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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from cdmpp.cores import Core
from cdmpp.errors import CdmppError
from cdmpp.machine_code.addresses import MOST_TERMS, Value
from cdmpp.machine_code.operation import Operation
from cdmpp.paths import cache_root

SOURCE = Path(__file__).with_name("pipeline.cpp")
_FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC", "-ffp-contract=off")
_RESULTS = 7


def _build() -> Path:
    digest = hashlib.sha256(SOURCE.read_bytes() + repr((_FLAGS, platform.machine())).encode()).hexdigest()
    target = cache_root() / "native" / f"pipeline-{digest[:20]}.so"
    if target.exists():
        return target
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        raise CdmppError("no C++ compiler (c++, g++ or clang++) on the path")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        library = Path(folder) / target.name
        built = subprocess.run([compiler, *_FLAGS, str(SOURCE), "-o", str(library)], capture_output=True, text=True)
        if built.returncode:
            raise CdmppError(built.stderr.strip()[-300:])
        os.replace(library, target)
    return target


@functools.cache
def native_pipeline() -> ctypes._NamedFuncPointer | None:
    """The compiled function, or None (with one warning) where it cannot be had."""
    if os.environ.get("CDMPP_NATIVE", "1") == "0":
        return None
    try:
        entry = ctypes.CDLL(str(_build())).run_pipeline
    except (CdmppError, OSError) as error:
        warnings.warn(
            f"the native pipeline could not be built ({error}); the Python version gives the same numbers, slower. "
            "CDMPP_NATIVE=0 silences this.",
            RuntimeWarning,
            stacklevel=3,
        )
        return None
    longs = ctypes.POINTER(ctypes.c_int64)
    entry.argtypes = [longs, ctypes.c_double, *[ctypes.c_int64] * 3, ctypes.POINTER(ctypes.c_double)]
    entry.restype = None
    return entry


class PipelineText:
    """A piece of machine code and a core, as ``pipeline.cpp`` reads them."""

    def __init__(self, core: Core, constants: Sequence[int]) -> None:
        """``constants``: bytes at which addresses alias, and of a cache line."""
        self.core = core
        ways = ("l1_sets", "l1_ways", "l2_sets", "l2_ways")
        cycles = ("forward_cycles", "blocked_cycles", "masked_forward_cycles", "aliased_cycles", "masked_store_cycles")
        self.header = [
            int(core["issue_width"]),
            int(core["window"]),
            len(core.port_names),
            *(int(core[name]) for name in ("load_ports", "store_ports", "store_bytes")),
            *(round(core[name]) for name in cycles),
            *(int(core[name]) for name in ways),
            *constants,
            MOST_TERMS,
        ]
        self.ids: dict[str, int] = {}

    def of(self, piece: Sequence[Operation], slots: Sequence[int], known: Mapping[str, Value]) -> np.ndarray:
        """(n,) int64: everything but how often it runs. ``slots`` of each instruction in the core's width."""
        for item in piece:  # registers come first among the names
            for name in (*item.reads, *item.writes, *item.address_registers, *(name for name, _ in item.terms)):
                self.ids.setdefault(name, len(self.ids))
            if item.assigns:
                for name in (item.assigns[0], *(name for name, _ in item.assigns[1])):
                    self.ids.setdefault(name, len(self.ids))
        for name in known:
            self.ids.setdefault(name, len(self.ids))
        vectors = [int(name[0] == "v") for name in self.ids]
        items = [number for item, n in zip(piece, slots, strict=True) for number in self._item(item, n)]
        held = [number for name, value in known.items() for number in (self.ids[name], *self._terms(*value))]
        first_unknown = len(self.ids)
        text = [*self.header, len(vectors), *vectors, first_unknown, len(known), *held, len(piece), *items]
        return np.array(text, np.int64)

    def _item(self, item: Operation, slots: int) -> Iterable[int]:
        core, unit = self.core, self.core.units[item.name][item.width == 64]
        gathered = item.lanes if item.loads else 0
        terms = item.terms or (((item.address[0], 1),) if item.address else ())
        place = item.address is not None and not item.lanes
        latency = core["load_latency"] if item.width == 8 else core["vector_load_latency"]
        register, assigned, offset = item.assigns or ("", (), 0)
        return (
            sum(1 << port for port in unit.ports),
            unit.latency,
            unit.busy * (item.lanes if item.name == "scatter" else 1),
            slots,
            gathered,
            item.moved,
            max(1, -(-item.moved // int(core["load_bytes"]))),
            int(latency),
            int(place and item.loads),
            int(place and item.stores),
            int(item.masked),
            int(item.width > 8),
            *self._names(item.reads),
            *self._names(item.address_registers),
            *self._names(item.writes),
            *self._terms(terms, item.address[1] if item.address else 0),
            self.ids[register] if register else -1,
            *self._terms(assigned, offset),
        )

    def _names(self, names: Sequence[str]) -> Iterable[int]:
        return (len(names), *(self.ids[name] for name in names))

    def _terms(self, terms: Sequence[tuple[str, int]], offset: int) -> Iterable[int]:
        numbers = [n for name, factor in terms for n in (self.ids.setdefault(name, len(self.ids)), factor)]
        return (len(terms), *numbers, offset)


def run_native(text: np.ndarray, core: Core, runs: int, between: int, before: int) -> list[float] | None:
    """What ``run_pipeline`` answers; None where it could not be compiled."""
    entry = native_pipeline()
    if entry is None:
        return None
    result = np.zeros(_RESULTS)
    pointers = (
        (array.ctypes.data_as(kind))
        for array, kind in ((text, ctypes.POINTER(ctypes.c_int64)), (result, ctypes.POINTER(ctypes.c_double)))
    )
    numbers, answer = pointers
    entry(numbers, core["store_bytes_per_cycle"], runs, between, before, answer)
    return [float(value) for value in result]
