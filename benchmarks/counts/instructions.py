"""What one instruction of x86-64 or AArch64 is, by rules of its own: not those of the reader that is checked."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

_MEMORY = re.compile(r"\(.*\)")
_READS_LAST = re.compile(
    r"v?(u?comis|ptest|testp)|cmp[bwlq]|test[bwlq]|bt[bwlq]?$|div|idiv|mul|imul|push|call|jmp|nop|prefetch"
)
_STORES_ONLY = re.compile(r"v?(mov|maskmov|pmaskmov|extract|pextr|compress|cvtps2ph|pmov|p?scatter)|set|pop|kmov")
_ADDRESS_ONLY = ("lea", "nop", "prefetch")
_ELEMENTS = {"ss": 4, "sd": 8}
_WORDS = {"b": 1, "w": 2, "l": 4, "q": 8}


class Instruction(NamedTuple):
    """Amounts of one run."""

    instructions: int = 1
    loads: int = 0
    """Operands in memory that are read; of a gather one."""
    stores: int = 0
    """Operands in memory that are written; of a scatter one."""
    branches: int = 0
    """Jumps and returns."""
    calls: int = 0
    scalar_floats: int = 0
    """Arithmetic on one float: sums, products, both at once, minima and maxima."""
    vector_128: int = 0
    """The same on vectors of 128 bits."""
    vector_256: int = 0
    vector_512: int = 0


KINDS = Instruction._fields


def implied(line: str) -> tuple[int, int]:
    """Loads and stores of x86-64 that no operand names: what is returned to, pushed and popped."""
    return int(line.startswith(("ret", "pop"))), int(line.startswith(("call", "push")))


@functools.cache
def instruction(line: str, arm: bool = False) -> Instruction:
    """Amounts of a line of x86-64 code in AT&T syntax, such as ``vaddps (%rdi), %ymm0, %ymm1``, or of AArch64 code."""
    return _arm(line) if arm else _x86(line)


def _arm(line: str) -> Instruction:
    name, _, rest = line.partition(" ")
    memory = "[" in rest and name != "adrp"
    vector = bool(re.search(r"\bv\d+\.(16b|8h|4s|2d)", rest))
    scalar = bool(re.match(r"[sd]\d+", rest))
    computes = bool(re.match(r"f(mla|mls|n?madd|n?msub|add|sub|n?mul|max|min|maxnm|minnm)$", name))
    return Instruction(
        loads=int(memory and name.startswith("ld")),
        stores=int(memory and name.startswith("st")),
        branches=int(bool(re.match(r"(b|br|ret|cbz|cbnz|tbz|tbnz|b\..*)$", name))),
        calls=int(name in ("bl", "blr")),
        scalar_floats=int(computes and scalar and not vector),
        vector_128=int(computes and vector),
    )


def _x86(line: str) -> Instruction:
    name, _, rest = line.partition(" ")
    if name in ("rep", "lock", "notrack"):
        name, _, rest = rest.strip().partition(" ")
    operands = [part.strip() for part in re.split(r",(?![^(]*\))", rest)] if rest else []
    loads = stores = 0
    if not name.startswith(_ADDRESS_ONLY):
        for i, operand in enumerate(operands):
            if not _MEMORY.search(operand):
                continue
            last = i + 1 == len(operands) and not _READS_LAST.match(name)
            if not last or (len(operands) == 3 and name.startswith("imul")):
                loads += 1
            else:
                stores += 1
                loads += not _STORES_ONLY.match(name)
    width = 512 if "%zmm" in rest else 256 if "%ymm" in rest else 128 if "%xmm" in rest else 0
    computes = bool(re.match(r"v?(fn?m(add|sub)(add|sub)?\d*|add|sub|mul|max|min)[ps][sdh]$", name)) and width > 0
    scalar = computes and name[-2] == "s"
    return Instruction(
        loads=loads,
        stores=stores,
        branches=int(name[0] == "j" or name.startswith("ret")),
        calls=int(name.startswith("call")),
        scalar_floats=int(scalar),
        vector_128=int(computes and not scalar and width == 128),
        vector_256=int(computes and not scalar and width == 256),
        vector_512=int(computes and not scalar and width == 512),
    )
