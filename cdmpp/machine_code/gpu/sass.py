"""SASS listings: what ``cuobjdump -sass -res-usage`` prints of a cubin, as kernels of instructions. sm_75 to sm_120."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cdmpp.errors import DataError

INSTRUCTION_BYTES = 16
_RESERVED_FROM, _RESERVED_BYTES = 90, 1024
"""From sm_90 on a listing counts the shared memory that the system reserves in each block to the block's own; of a
kernel that has none it counts nothing. Older architectures reserve as much and do not list it."""
_FIRST = re.compile(r"^\s+/\*([0-9a-f]{4,6})\*/\s+(.*?)\s*;\s*/\* 0x([0-9a-f]{16}) \*/")
_SECOND = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/")
_USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_ARCH = re.compile(r"^\s*code for sm_(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Control:
    """The compiler gives the scheduler these orders for an instruction (bits 105 to 121 of its encoding)."""

    stall: int
    """Cycles until the warp may issue again."""
    yields: bool
    write_barrier: int
    """Scoreboard that is set until the result is there; 7: none."""
    read_barrier: int
    """Scoreboard that is set until the operands were read; 7: none."""
    waits: int
    """Mask of scoreboards that have to be free."""

    @property
    def high(self) -> int:
        """Return the upper 64 bits, as far as they are read."""
        bits = self.stall | (not self.yields) << 4 | self.write_barrier << 5 | self.read_barrier << 8 | self.waits << 11
        return bits << 41

    @classmethod
    def of(cls, high: int) -> Control:
        """Read the upper 64 bits."""
        bits = high >> 41
        return cls(bits & 15, not bits >> 4 & 1, bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63)


@dataclass(frozen=True)
class SassLine:
    """A line is one instruction as text."""

    guard: str
    """Predicate that lets it run, such as ``!P0``; empty: always."""
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    low: int
    """The lower 64 bits of its encoding."""
    control: Control

    @property
    def name(self) -> str:
        """Return the instruction as it is written, without its operands."""
        return ".".join([self.opcode, *self.modifiers])


@dataclass(frozen=True)
class SassKernel:
    """This is one kernel of a cubin."""

    name: str
    arch: int
    """75 of ``sm_75``."""
    registers: int
    """Registers of a thread."""
    stack_bytes: int
    """Bytes of the stack of a thread."""
    shared_bytes: int
    """Shared memory of a block that its source declares, without what the launch gives and the system reserves."""
    lines: tuple[SassLine, ...]


def parse_sass(text: str) -> dict[str, SassKernel]:
    """Parse kernels by name. ``DataError``: the text is no such listing, or lacks the resources of a kernel."""
    found = _ARCH.search(text)
    if found is None:
        raise DataError("no listing of a cubin: it lacks a line 'code for sm_..'")
    usage = {
        row[1]: tuple(int(row[i]) for i in range(2, 5))
        for row in _USAGE.finditer(text[: found.start()].replace("\n", " "))
    }
    kernels = {}
    for name, lines in _functions(text[found.start() :]):
        if name not in usage:
            raise DataError(f"no resources of kernel {name} in the listing; it has those of {sorted(usage)}")
        registers, stack_bytes, listed_bytes = usage[name]
        arch = int(found[1])
        shared_bytes = max(0, listed_bytes - _reserved(arch))
        kernels[name] = SassKernel(name, arch, registers, stack_bytes, shared_bytes, tuple(lines))
    return kernels


def listed(kernels: Mapping[str, SassKernel]) -> str:
    """Write a listing that ``parse_sass`` reads as the same kernels."""
    used = []
    for one in kernels.values():
        shared = one.shared_bytes + _reserved(one.arch) if one.shared_bytes else 0
        used.append(f" Function {one.name}:\n  REG:{one.registers} STACK:{one.stack_bytes} SHARED:{shared} LOCAL:0")
    texts = [f"code for sm_{one.arch}" for one in kernels.values()][:1]
    for one in kernels.values():
        texts.append(f"Function : {one.name}")
        for number, line in enumerate(one.lines):
            guard = f"@{line.guard} " if line.guard else ""
            text = f"{guard}{' '.join([line.name, ', '.join(line.operands)]).strip()} ;"
            texts.append(f" /*{INSTRUCTION_BYTES * number:04x}*/ {text} /* 0x{line.low:016x} */")
            texts.append(f" /* 0x{line.control.high:016x} */")
    return "\n".join([*used, *texts, ""])


def _reserved(arch: int) -> int:
    return _RESERVED_BYTES if arch >= _RESERVED_FROM else 0


def _functions(text: str) -> Iterator[tuple[str, list[SassLine]]]:
    for part in text.split("Function : ")[1:]:
        name, _, body = part.partition("\n")
        lines: list[SassLine] = []
        first: re.Match[str] | None = None
        for row in body.splitlines():
            if found := _FIRST.match(row):
                first = found
            elif first is not None and (second := _SECOND.match(row)):
                if int(first[1], 16) != INSTRUCTION_BYTES * len(lines):
                    raise DataError(f"kernel {name.strip()}: instruction {len(lines)} stands at address 0x{first[1]}")
                lines.append(_line(first[2], int(first[3], 16), int(second[1], 16)))
                first = None
        yield name.strip(), lines


def _line(text: str, low: int, high: int) -> SassLine:
    guard = ""
    if text.startswith("@"):
        guard, text = text[1:].split(None, 1)
    head, _, rest = text.partition(" ")
    opcode, *modifiers = head.split(".")
    operands = tuple(part.strip().replace(".reuse", "") for part in rest.split(",")) if rest.strip() else ()
    return SassLine(guard, opcode, tuple(modifiers), operands, low, Control.of(high))
