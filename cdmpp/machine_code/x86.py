"""One x86-64 instruction in AT&T syntax -> what an execution core does with it: ports, cycles, operands.

Latencies and ports are rounded from public tables (uops.info, Agner Fog) for Ice Lake server cores: a scale for counts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_REGISTER = re.compile(r"%(\w+)")
_COMMA = re.compile(r",(?![^()]*\))")
"""Between operands, not inside an address."""
_MASK = re.compile(r"\{%(k\d)\}")
_DISPLACEMENT = re.compile(r"(-?\d*)(\(.*\))$")
LOAD_PORTS, STORE_PORTS = (2, 3), (4, 7)
LOAD_LATENCY = {8: 5, 16: 7, 32: 7, 64: 7}
"""Cycles from the first-level cache, by bytes."""
_PORTS = {
    "": (),
    "integer": (0, 1, 5, 6),
    "multiply": (1,),
    "branch": (0, 6),
    "one": (0,),
    "float": (0, 1),
    "vector": (0, 1, 5),
    "wide": (0, 5),
    "shuffle": (5,),
    "light_shuffle": (1, 5),
}


class Instruction(NamedTuple):
    """What an execution core does with one line."""

    kind: str
    """One of ``code_features.KINDS``, without its prefix."""
    ports: tuple[int, ...]
    """Any one of these executes it; none for moves between registers and memory."""
    busy: int
    """Cycles it keeps that port."""
    latency: int
    slots: int
    """Of the core's width that it takes to start: more than one for what is split."""
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    address: tuple[str, int] | None
    """Base, index and scale as text, and displacement in bytes; None where memory is not touched."""
    address_registers: tuple[str, ...]
    loads: bool
    stores: bool
    width: int
    """Bytes of its widest register; 8 for integers."""
    lanes: int
    """Of a gather or scatter; 0 elsewhere."""
    scalar: bool
    """Arithmetic or a move of one float."""

    @property
    def spills(self) -> bool:
        """On the stack, where values go that no register is left for."""
        return self.address is not None and "%rsp" in self.address[0]


class _Rule(NamedTuple):
    prefixes: tuple[str, ...]
    kind: str
    latency: int
    ports: str
    wide_ports: str = ""
    """With 512-bit registers, where it differs."""
    slots: int = 1


_RULES = (
    _Rule(("vfmadd", "vfnmadd", "vfmsub", "vfnmsub", "vmulp", "vmuls"), "fma", 4, "float", "wide"),
    _Rule(("vaddp", "vadds", "vsubp", "vsubs", "vrndscale"), "fadd", 4, "float", "wide"),
    _Rule(("vmaxp", "vmaxs", "vminp", "vmins"), "fmax", 4, "float", "wide"),
    _Rule(("vdiv", "vsqrt", "vrsqrt", "vrcp"), "divide", 12, "one"),
    _Rule(("vgather", "vpgather"), "gather", 12, "one"),
    _Rule(("vscatter", "vpscatter"), "scatter", 12, "one"),
    _Rule(("vinsertps", "vshuf", "vunpck", "vpunpck", "vpshuf", "vpermilp"), "shuffle", 1, "light_shuffle", "shuffle"),
    _Rule(("valign", "vpalign", "vmovhps", "vmovlps", "vmovs"), "shuffle", 1, "light_shuffle", "shuffle"),
    _Rule(("vmovhl", "vmovlh", "vmovdd"), "shuffle", 1, "light_shuffle", "shuffle"),
    _Rule(("vinsert", "vextract", "vbroadcast", "vpbroadcast", "vperm", "vpmovs", "vpmovz"), "shuffle", 3, "shuffle"),
    _Rule(("vpinsr", "vpextr", "vpmov", "vcompress", "vexpand"), "shuffle", 3, "shuffle", slots=2),
    _Rule(("vcvt",), "convert", 4, "float", "wide"),
    _Rule(("vcmp", "vpcmp", "vptestm", "vptestnm", "vfpclass"), "compare", 3, "shuffle"),
    _Rule(("vpmulld", "vpmullq"), "vector_multiply", 10, "float", "one", 2),
    _Rule(("vpmul",), "vector_multiply", 5, "float", "one"),
    _Rule(("vmov", "vzero"), "move", 0, ""),
    _Rule(("v",), "vector_int", 1, "vector", "wide"),
    _Rule(("kmov", "kshift", "kunpck"), "mask", 3, "shuffle"),
    _Rule(("k",), "mask", 1, "one"),
    _Rule(("call",), "call", 60, "integer", slots=40),
    _Rule(("j", "ret"), "branch", 1, "branch"),
    _Rule(("idiv", "div"), "int_divide", 14, "multiply", slots=4),
    _Rule(("imul", "mul"), "int_multiply", 3, "multiply"),
    _Rule(("movs", "movz"), "int", 1, "integer"),
    _Rule(("mov", "push", "pop"), "int_move", 0, ""),
    _Rule(("",), "int", 1, "integer"),
)
_DIVIDER_CYCLES = {16: 4, 32: 5, 64: 10}
_ONLY_READS = ("cmp", "test", "vucomis", "vcomis", "j", "bt", "kortest", "ktest", "prefetch", "nop", "push", "ret")
_KEEPS_TARGET = ("vfmadd", "vfnmadd", "vfmsub", "vfnmsub", "vpermt2", "vpermi2", "vpternlog")
_OVERWRITES = ("v", "k", "mov", "lea", "set", "pop")
_SETS_FLAGS = ("add", "sub", "and", "xor", "cmp", "test", "inc", "dec", "neg", "sh", "sa", "imul", "or", "bt", "adc")
_FLAGS_TOO = ("sbb", "vucomi", "vcomi", "kortest", "ktest", "vptest")
_READS_FLAGS = ("set", "cmov", "adc", "sbb", "j")
_ONE_OPERAND = ("idiv", "div", "imul", "mul", "push", "call", "j")
_IMPLIED = {
    **dict.fromkeys(("cltd", "cqto"), (("rax",), ("rdx",))),
    **dict.fromkeys(("cltq", "cwtl"), (("rax",), ("rax",))),
}
_NAMED = ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp")


@lru_cache(maxsize=65536)
def decode(line: str) -> Instruction:
    """The instruction of one line; what no rule knows counts as an integer or vector operation of one cycle."""
    name, _, rest = line.partition(" ")
    if name in ("rep", "lock", "notrack"):
        name, _, rest = rest.partition(" ")
    operands = [operand.strip() for operand in _COMMA.split(rest)] if rest.strip() else []
    width = next((size for mark, size in (("%zmm", 64), ("%ymm", 32), ("%xmm", 16)) if mark in rest), 8)
    reads, writes, memory, loads, stores = _operands(name, operands)
    rule = next(rule for rule in _RULES if name.startswith(rule.prefixes))
    kind, latency, slots = rule.kind, rule.latency, rule.slots
    ports = _PORTS[rule.wide_ports if width == 64 and rule.wide_ports else rule.ports]
    moves = name.startswith(("vmov", "vbroadcast", "vpbroadcast", "vextract")) and name != "vextractps"
    if memory is not None and moves and not (name == "vmovhps" and loads):
        kind, latency, ports = "move", 0, ()  # the load or store is all there is to it
    elif kind == "shuffle" and loads and name.startswith("vinsert") and name != "vinsertps":
        latency, ports = 1, _PORTS["wide" if width == 64 else "vector"]
    elif kind == "move" and name in ("vmovd", "vmovq") and memory is None:
        kind, latency, ports = "transfer", 3, _PORTS["shuffle"]
    elif kind == "shuffle" and operands and name.startswith("vpbroadcast") and _is_integer(operands[0]):
        kind = "transfer"
    elif name.startswith(("vxorp", "vpxor", "xor")) and len(operands) > 1 and len(set(operands)) == 1:
        kind, latency, ports, reads = "move", 0, (), set()  # zero, known without executing anything
    lanes = max(1, width // (4 if name[-3:] in ("dps", "dd") else 8)) if kind in ("gather", "scatter") else 0
    busy = {"divide": _DIVIDER_CYCLES.get(width, 4), "scatter": lanes}.get(kind, 1)
    if kind in ("move", "int_move") and memory is not None:
        slots = 0
    slots = max(1, slots + (loads and slots == 0) + stores)
    place = _DISPLACEMENT.search(memory or "")
    address = (place[2], int(place[1] or 0)) if place else None
    used = tuple(sorted(reads)), tuple(sorted(writes)), address, tuple(sorted(set(_registers(memory or ""))))
    return Instruction(kind, ports, busy, latency, slots, *used, loads, stores, width, lanes, name.endswith("ss"))


def _operands(name: str, operands: list[str]) -> tuple[set[str], set[str], str | None, bool, bool]:
    """Registers read and written, the memory operand, and whether it is loaded from and stored to."""
    reads, writes = (set(part) for part in _IMPLIED.get(name, ((), ())))
    memory: str | None = None
    loads = stores = False
    only_reads = name.startswith(_ONLY_READS) or (len(operands) == 1 and name.startswith(_ONE_OPERAND))
    for place, text in enumerate(operands):
        masks = _MASK.findall(text)
        reads.update(masks)
        operand = text.split("{")[0].strip()
        target = place == len(operands) - 1 and not only_reads
        if "(" in operand:
            reads.update(_registers(operand))
            if name.startswith(("lea", "nop")):
                continue
            memory = operand
            moved = name.startswith(("vmov", "mov", "vextract", "vpextr", "kmov", "vscatter", "vpscatter", "set"))
            loads, stores = loads or not (target and moved), stores or target
        elif operand.startswith("%"):
            register = _canonical(operand[1:])
            if not target:
                reads.add(register)
                continue
            writes.add(register)
            three = name.startswith("imul") and len(operands) == 3
            merged = bool(masks) and "{z}" not in text
            if name.startswith(_KEEPS_TARGET) or merged or not (name.startswith(_OVERWRITES) or three):
                reads.add(register)
    if name.startswith(("idiv", "div")) or (len(operands) == 1 and name.startswith(("imul", "mul"))):
        reads.update(("rax", "rdx"))
        writes.update(("rax", "rdx"))
    if name.startswith(_READS_FLAGS) and name != "jmp":
        reads.add("flags")
    if name.startswith(_SETS_FLAGS + _FLAGS_TOO):
        writes.add("flags")
    return reads, writes, memory, loads, stores


def _registers(text: str) -> list[str]:
    return [_canonical(name) for name in _REGISTER.findall(text)]


def _canonical(name: str) -> str:
    """One name for all widths of a register."""
    if name[1:3] == "mm":
        return "v" + name[3:]
    if re.fullmatch(r"r\d+[dwb]?", name):
        return name.rstrip("dwb")
    if len(name) == 2 and name[1] in "lh" and name[0] in "abcd":
        return f"r{name[0]}x"
    stem = name[1:] if len(name) == 3 and name[0] in "re" else name.removesuffix("l") if len(name) == 3 else name
    return f"r{stem}" if stem in _NAMED else name


def _is_integer(operand: str) -> bool:
    return operand.startswith("%") and not _canonical(operand[1:].split("{")[0].strip()).startswith(("v", "k"))
