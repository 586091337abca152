"""What the reader of machine code says that a program executes: how often each line runs, and what it is taken for."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.counts.blocks import computes
from benchmarks.counts.instructions import KINDS
from cdmpp.machine_code.cpu.compile import Compiled
from cdmpp.machine_code.cpu.native import native_code
from cdmpp.machine_code.cpu.operation import OPERATIONS

_FLOATS = ("fma", "fadd", "fmax")
_BYTES = 1 << 16
_NAMES = tuple(OPERATIONS)


@dataclass
class CountedFunction:
    """A function of the machine code."""

    times: float
    """Calls in one run of the program."""
    unknown: float
    """Branches that data decide, where they decide about more than a little."""
    lines: list[tuple[str, float, str]] = field(default_factory=list)
    """In the order of the text: instruction, runs of a whole program, block."""


def counted(code: Compiled) -> Mapping[str, CountedFunction]:
    """The functions of a program that compute, by name."""
    texts = code.llvm_ir.encode(), len(code.llvm_ir), code.assembly.encode(), len(code.assembly)
    room = 1 << 20
    while True:
        out = ctypes.create_string_buffer(room)
        size = native_code().code_flows(*texts, out, room)
        if size < 0:
            raise ValueError("the reader of machine code cannot read the program")
        if size <= room:
            break
        room = size
    found: dict[str, CountedFunction] = {}
    now: CountedFunction | None = None
    for line in out.raw[:size].decode().splitlines():
        kind, name, number, *rest = line.split("\t")
        if kind == "M":
            now = found[name] = CountedFunction(float(number), float(rest[0]))
        elif kind == "I":
            now = None
        elif kind == "B" and now is not None:
            now.lines += [(text.replace(".L__tvm", "__tvm"), float(number) * now.times, name) for text in rest]
    return {name: function for name, function in found.items() if computes(name)}


@functools.cache
def taken_for(line: str, arm: bool = False) -> tuple[int, ...]:
    """Amounts of ``KINDS`` that the reader sees in a line."""
    out = ctypes.create_string_buffer(_BYTES)
    text = line.encode()
    size = native_code().code_operations(text, ctypes.c_int64(len(text)), int(arm), out, ctypes.c_int64(_BYTES))
    parts = dict(part.split("=", 1) for part in out.raw[:size].decode().strip("\n\t").split("\t"))
    kind, width = OPERATIONS[_NAMES[int(parts["operation"])]], int(parts["width"])
    floats = kind in _FLOATS and "rnd" not in line and "round" not in line
    scalar = floats and parts["scalar"] == "1"
    amounts = {
        "instructions": 1,
        "loads": int(parts["loads"]),
        "stores": int(parts["stores"]),
        "branches": int(kind == "branch"),
        "calls": int(kind == "call"),
        "scalar_floats": int(scalar),
        "vector_128": int(floats and not scalar and width <= 16),
        "vector_256": int(floats and not scalar and width == 32),
        "vector_512": int(floats and not scalar and width == 64),
    }
    return tuple(amounts[name] for name in KINDS)
