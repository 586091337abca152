"""One x86-64 instruction in AT&T syntax -> what it asks of an execution core."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from cdmpp.machine_code.cpu.operation import Operation

_REGISTER = re.compile(r"%(\w+)")
_COMMA = re.compile(r",(?![^()]*\))")
"""Between operands, not inside an address."""
_MASK = re.compile(r"\{%(k\d)\}")
_DISPLACEMENT = re.compile(r"(-?\d*)(\(.*\))$")
_IMMEDIATE = re.compile(r"\$(-?\d+)$")
_PARTS = (
    (("ss", "vmovd", "vpbroadcastd", "vpextrd", "vpinsrd"), 4),
    (("sd", "vmovq", "vpbroadcastq", "vmovlps", "vmovhps", "vpextrq", "vpinsrq"), 8),
    (("128", "32x4", "64x2"), 16),
    (("64x4", "32x8"), 32),
)
"""Endings of names -> bytes of memory, where it is not the whole register."""
_RULES = (
    (("vfmadd", "vfnmadd", "vfmsub", "vfnmsub", "vmulp", "vmuls"), "fma"),
    (("vaddp", "vadds", "vsubp", "vsubs", "vrndscale"), "fadd"),
    (("vmaxp", "vmaxs", "vminp", "vmins"), "fmax"),
    (("vdiv", "vsqrt", "vrsqrt", "vrcp"), "divide"),
    (("vgather", "vpgather"), "gather"),
    (("vscatter", "vpscatter"), "scatter"),
    (("vinsertps", "vshuf", "vunpck", "vpunpck", "vpshuf", "vpermilp"), "light_shuffle"),
    (("valign", "vpalign", "vmovhps", "vmovlps", "vmovs"), "light_shuffle"),
    (("vmovhl", "vmovlh", "vmovdd"), "light_shuffle"),
    (("vinsert", "vextract", "vbroadcast", "vpbroadcast", "vperm", "vpmovs", "vpmovz"), "shuffle"),
    (("vpinsr", "vpextr", "vpmov", "vcompress", "vexpand"), "insert"),
    (("vcvt",), "convert"),
    (("vcmp", "vpcmp", "vptestm", "vptestnm", "vfpclass"), "compare"),
    (("vpmulld", "vpmullq"), "multiply_low"),
    (("vpmul",), "vector_multiply"),
    (("vmov", "vzero", "vmaskmov"), "move"),
    (("v",), "vector_int"),
    (("kmov", "kshift", "kunpck"), "mask_transfer"),
    (("k",), "mask"),
    (("call",), "call"),
    (("j", "ret"), "branch"),
    (("idiv", "div"), "int_divide"),
    (("imul", "mul"), "int_multiply"),
    (("movs", "movz"), "int"),
    (("mov", "push", "pop"), "int_move"),
    (("",), "int"),
)
"""Beginnings of names -> the operation, first rule first."""
_ONLY_READS = ("cmp", "test", "vucomis", "vcomis", "j", "bt", "kortest", "ktest", "prefetch", "nop", "push", "ret")
_KEEPS_TARGET = ("vfmadd", "vfnmadd", "vfmsub", "vfnmsub", "vpermt2", "vpermi2", "vpternlog")
_OVERWRITES = ("v", "k", "mov", "lea", "set", "pop")
_SETS_FLAGS = ("add", "sub", "and", "xor", "cmp", "test", "inc", "dec", "neg", "sh", "sa", "imul", "or", "bt", "adc")
_FLAGS_TOO = ("sbb", "vucomi", "vcomi", "kortest", "ktest", "vptest")
_STORES = ("vmov", "mov", "vmaskmov", "vpmaskmov", "vextract", "vpextr", "kmov", "vscatter", "vpscatter", "set")
"""Names that write memory without reading it."""
_READS_FLAGS = ("set", "cmov", "adc", "sbb", "j")
_ONE_OPERAND = ("idiv", "div", "imul", "mul", "push", "call", "j")
_IMPLIED = {
    **dict.fromkeys(("cltd", "cqto"), (("rax",), ("rdx",))),
    **dict.fromkeys(("cltq", "cwtl"), (("rax",), ("rax",))),
}
_NAMED = ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp")


@lru_cache(maxsize=65536)
def decode(line: str) -> Operation:
    """The operation of one line; what no rule knows counts as one of integers or vectors that takes a cycle."""
    mnemonic, _, rest = line.partition(" ")
    if mnemonic in ("rep", "lock", "notrack"):
        mnemonic, _, rest = rest.partition(" ")
    operands = [operand.strip() for operand in _COMMA.split(rest)] if rest.strip() else []
    width = next((size for mark, size in (("%zmm", 64), ("%ymm", 32), ("%xmm", 16)) if mark in rest), 8)
    reads, writes, memory, loads, stores = _operands(mnemonic, operands)
    name = next(name for prefixes, name in _RULES if mnemonic.startswith(prefixes))
    moves = (
        mnemonic.startswith(("vmov", "vmaskmov", "vpmaskmov", "vbroadcast", "vpbroadcast", "vextract"))
        and mnemonic != "vextractps"
    )
    if memory is not None and moves and not (mnemonic == "vmovhps" and loads):
        name = "move"  # the load or store is all there is to it
    elif name == "shuffle" and loads and mnemonic.startswith("vinsert"):
        name = "vector_int"  # a blend of what was loaded
    elif (name == "move" and mnemonic in ("vmovd", "vmovq") and memory is None) or (
        name == "shuffle" and operands and mnemonic.startswith("vpbroadcast") and _is_integer(operands[0])
    ):
        name = "transfer"
    elif mnemonic.startswith(("vxorp", "vpxor", "xor")) and len(operands) > 1 and len(set(operands)) == 1:
        name, reads = "move", set()  # zero, known without executing anything
    lanes = max(1, width // (4 if mnemonic[-3:] in ("dps", "dd") else 8)) if name in ("gather", "scatter") else 0
    place = _DISPLACEMENT.search(memory or "")
    address = (place[2], int(place[1] or 0)) if place else None
    masked = memory is not None and (mnemonic.startswith(("vmaskmov", "vpmaskmov")) or any(map(_MASK.search, operands)))
    return Operation(
        name,
        tuple(sorted(reads)),
        tuple(sorted(writes)),
        address,
        tuple(sorted(set(_registers(memory or "")))),
        loads,
        stores,
        width,
        _moved(mnemonic, width),
        lanes,
        mnemonic.endswith("ss"),
        masked and not lanes,
        address is not None and "%rsp" in address[0],
        _terms(address[0]) if address else (),
        _assigned(mnemonic, operands),
    )


def _moved(mnemonic: str, width: int) -> int:
    """Bytes of the memory operand."""
    if not mnemonic.startswith("v"):
        return {"b": 1, "w": 2, "l": 4}.get(mnemonic[-1], 8)
    if found := next((size for endings, size in _PARTS if mnemonic.endswith(endings)), 0):
        return found
    widening = next((part for mark, part in (("bq", 8), ("bd", 4), ("wq", 4)) if mnemonic.endswith(mark)), 2)
    return width // widening if mnemonic.startswith(("vpmovz", "vpmovs")) else width


def _terms(text: str) -> tuple[tuple[str, int], ...]:
    """Registers of an address ``(base,index,scale)`` with their factors."""
    base, *index = text.strip("()").split(",")
    factor = int(index[1]) if len(index) == 2 else 1
    terms = [(base, 1)] if base else []
    terms += [(index[0], factor)] if index else []
    return tuple((_canonical(register.strip().lstrip("%")), times) for register, times in terms)


def _assigned(mnemonic: str, operands: Sequence[str]) -> tuple[str, tuple[tuple[str, int], ...], int] | None:
    """Of an instruction whose result is a sum of registers and a constant."""
    if not operands or not _is_integer(operands[-1]):
        return None
    target = _canonical(operands[-1][1:])
    if len(operands) == 1:
        step = {"incq": 1, "incl": 1, "decq": -1, "decl": -1}.get(mnemonic)
        return None if step is None else (target, ((target, 1),), step)
    if len(operands) != 2:
        return None
    source, constant = operands[0], _IMMEDIATE.match(operands[0])
    if mnemonic in ("leaq", "leal") and (place := _DISPLACEMENT.search(source)) and "%rip" not in source:
        return target, _terms(place[2]), int(place[1] or 0)
    if mnemonic in ("addq", "addl", "subq", "subl") and constant:
        sign = 1 if mnemonic.startswith("add") else -1
        return target, ((target, 1),), sign * int(constant[1])
    if mnemonic in ("addq", "addl") and _is_integer(source):
        return target, ((target, 1), (_canonical(source[1:]), 1)), 0
    if mnemonic in ("movq", "movl") and constant:
        return target, (), int(constant[1])
    if mnemonic in ("movq", "movl", "movslq") and _is_integer(source):
        return target, ((_canonical(source[1:]), 1),), 0
    if mnemonic in ("shlq", "shll") and constant:
        return target, ((target, 1 << int(constant[1])),), 0
    return None


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
            moved = name.startswith(_STORES)
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
