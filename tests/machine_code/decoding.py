"""What single machine instructions are taken for, and what a piece of them costs."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.devices.cores import Core
from cdmpp.machine_code.cpu.native import _core_numbers, native_code
from cdmpp.machine_code.cpu.operation import OPERATIONS

_BYTES = 1 << 16
Terms = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Operation:
    """One instruction, see ``native/operation.h``."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    address: int | None
    """Displacement in bytes; None where memory is not touched."""
    address_registers: tuple[str, ...]
    loads: bool
    stores: bool
    width: int
    moved: int
    lanes: int
    scalar: bool
    masked: bool
    spills: bool
    terms: Terms
    """Registers of the address with their factors; what is no such sum stands as its text in brackets."""
    assigns: tuple[str, Terms, int] | None
    """Register, terms and offset, where it becomes that sum."""

    @property
    def kind(self) -> str:
        """What it is counted as."""
        return OPERATIONS[self.name]


@dataclass(frozen=True)
class Steady:
    """What one run of a piece costs, once many have gone before, see ``native/pipeline.h``."""

    cycles: float
    blocked_loads: float
    masked_waits: float
    aliased_loads: float
    l1_conflicts: float
    l2_conflicts: float


def decode(line: str, arm: bool = False) -> Operation:
    """The operation of one line of x86-64 code, or of AArch64."""
    out = ctypes.create_string_buffer(_BYTES)
    size = native_code().code_operations(line.encode(), ctypes.c_int64(len(line)), arm, out, ctypes.c_int64(_BYTES))
    assert 0 <= size <= _BYTES, line
    parts = dict(part.split("=", 1) for part in out.raw[:size].decode().strip("\n\t").split("\t"))
    return Operation(
        name=list(OPERATIONS)[int(parts["operation"])],
        reads=_registers(parts["reads"]),
        writes=_registers(parts["writes"]),
        address=int(parts["displacement"]) if parts["addressed"] == "1" else None,
        address_registers=_registers(parts["address_registers"]),
        loads=parts["loads"] == "1",
        stores=parts["stores"] == "1",
        width=int(parts["width"]),
        moved=int(parts["moved"]),
        lanes=int(parts["lanes"]),
        scalar=parts["scalar"] == "1",
        masked=parts["masked"] == "1",
        spills=parts["spills"] == "1",
        terms=_terms(parts["terms"]),
        assigns=(parts["target"], _terms(parts["sum"]), int(parts["offset"])) if "target" in parts else None,
    )


def cost(core: Core, lines: Sequence[str], trips: float = math.inf) -> Steady:
    """What a run of these lines of x86-64 code costs, repeated until ``trips`` are done."""
    text, numbers, found = "\n".join(lines), _core_numbers(core), np.zeros(6)
    places = ctypes.c_void_p(numbers.ctypes.data), ctypes.c_double(trips), ctypes.c_void_p(found.ctypes.data)
    assert native_code().code_cost(text.encode(), ctypes.c_int64(len(text)), *places)
    return Steady(*found.tolist())


def _registers(text: str) -> tuple[str, ...]:
    return tuple(sorted(name for name in text.split(",") if name))


def _terms(text: str) -> Terms:
    terms = (term.rsplit("*", 1) for term in text.split(",") if "*" in term)
    return tuple((name, int(factor)) for name, factor in terms)
