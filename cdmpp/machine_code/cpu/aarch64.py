"""One AArch64 instruction as LLVM prints it (ELF syntax) -> what it asks of an execution core.

Integers, scalar floats and NEON, by the names of Arm's Architecture Reference Manual (DDI 0487); what counts as a move,
a shuffle or a transfer follows Arm's Neoverse N1 Software Optimization Guide. Scalable vectors (SVE) are not expected.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from cdmpp.machine_code.cpu.operation import Operation

_COMMA = re.compile(r",\s*(?![^\[{]*[\]}])")
"""Between operands, not inside an address or a list of registers."""
_REGISTER = re.compile(r"\b(?:([xwvqdshb])(\d{1,2})|w?(sp))\b")
_VECTOR = re.compile(r"\b(?:v\d+\.(\d*)([bhsd])|([qdshb])\d+)\b")
"""Lanes, where all of them are meant, and the size of one; or the size of a scalar."""
_GENERAL = re.compile(r"\b([xw])(?:\d+|zr)\b")
_BYTES = {"q": 16, "d": 8, "s": 4, "h": 2, "b": 1, "x": 8, "w": 4}
_LANES_OF_32_BITS = re.compile(r"v\d+\.[24]s$")
_REPEATS, _REARRANGES = re.compile(r"ld\dr"), re.compile(r"ld\dr|(?:ld|st)[234]")
"""Loads of one element to all lanes; loads and stores of every second to fourth element too."""
_ZERO = re.compile(r"#0[0x]*$")
_NUMBER = re.compile(r"#(-?\w+)$")
_SHIFT = re.compile(r"(?:lsl|[su]xt[wx])(?: #(\d+))?$")

_BRANCHES = ("b", "br", "ret", "cbz", "cbnz", "tbz", "tbnz")
_CALLS = ("bl", "blr")
_INTEGERS = {
    **dict.fromkeys(_CALLS, "call"),
    **dict.fromkeys(_BRANCHES, "branch"),
    **dict.fromkeys(("sdiv", "udiv"), "int_divide"),
    **dict.fromkeys(("mul", "mneg", "madd", "msub", "smulh", "umulh", "smull", "umull"), "int_multiply"),
    **dict.fromkeys(("smaddl", "umaddl", "smsubl", "umsubl", "smnegl", "umnegl"), "int_multiply"),
    "mov": "int_move",
}
_VECTORS = (
    (("fmadd", "fmsub", "fnm", "fmla", "fmls", "fmul", "fcmla", "bfdot", "bfm", "frecps", "frsqrts"), "fma"),
    (("fdiv", "fsqrt", "frecp", "frsqrt", "urecp", "ursqrt"), "divide"),
    (("fadd", "fsub", "fabd", "fcadd", "frint"), "fadd"),
    (("fmax", "fmin"), "fmax"),
    (("scvtf", "ucvtf", "fcvt", "bfcvt", "fjcvt"), "convert"),
    (("fcm", "fccmp", "fac", "cm"), "compare"),
    (("mul", "mla", "mls", "smul", "umul", "smla", "umla", "smls", "umls", "pmul", "sqdm", "sqrdm"), "vector_multiply"),
    (("sdot", "udot", "usdot", "sudot", "smmla", "ummla", "usmmla"), "vector_multiply"),
    (("zip", "uzp", "trn", "ext", "rev", "tb"), "light_shuffle"),
    (("xtn", "sqxt", "uqxt", "sxtl", "uxtl", "sshll", "ushll", "shll"), "light_shuffle"),
    (("",), "vector_int"),
)
"""Beginnings of names; the first that fits."""
_MOVES = ("mov", "fmov", "dup", "ins", "umov", "smov")
_PAIRS = ("ldp", "ldnp", "ldpsw")
_COMPARES = ("cmp", "cmn", "tst", "ccmp", "ccmn", "fcmp", "fcmpe", "fccmp", "fccmpe")
_SETS_FLAGS = (*_COMPARES, "adds", "subs", "negs", "ands", "bics", "adcs", "sbcs", "ngcs")
_READS_FLAGS = ("b.", "cs", "cinc", "cinv", "cneg", "ccm", "fccm", "fcsel", "adc", "sbc", "ngc")
_KEEPS_TARGET = (
    *("fmla", "fmls", "fcmla", "mla", "mls", "smla", "umla", "smls", "umls", "sqdmla", "sqdmls", "sqrdml"),
    *("sdot", "udot", "usdot", "sudot", "smmla", "ummla", "usmmla", "bfdot", "bfm", "saba", "uaba", "sadalp", "uadalp"),
    *("bsl", "bit", "bif", "tbx", "sli", "sri", "ssra", "usra", "srsra", "ursra", "movk", "bfi", "bfx"),
)

_Terms = tuple[tuple[str, int], ...]
_Sum = tuple[str, _Terms, int]


@lru_cache(maxsize=65536)
def decode(line: str) -> Operation:
    """The operation of one line; what no rule knows counts as one of integers or of vectors.

    Vector registers are 16 bytes wide, however much of them is used. NEON does not gather, scatter or mask.
    """
    name, _, rest = line.partition(" ")
    operands = [operand.strip() for operand in _COMMA.split(rest)] if rest.strip() else []
    place = next((i for i, operand in enumerate(operands) if operand.startswith("[")), len(operands))
    if name == "ldr" and place == len(operands) > 1:
        place -= 1  # a constant by its label
    values, memory, after = operands[:place], "".join(operands[place : place + 1]), operands[place + 1 :]
    reads, writes = _operands(name, values)
    based = _registers(memory)
    address, terms = _address(memory) if memory else (None, ())
    assigns = None if memory else _assigned(name, values)
    if address and (after or memory.endswith("!")):
        # Of an integer that is loaded besides nothing is known: the base alone cannot be told then.
        assigns = _moved_base(based[0], after, address[1]) if all(w[0] == "v" for w in writes) else None
        writes.add(based[0])
    vector = _VECTOR.search(" ".join(values)) is not None
    stores = bool(memory) and name.startswith("st")
    return Operation(
        name=_of_vectors(name, values, bool(memory)) if vector else _of_integers(name, bool(memory)),
        reads=tuple(sorted({*reads, *based, *_registers(" ".join(after))})),
        writes=tuple(sorted(writes)),
        address=address,
        address_registers=tuple(sorted(set(based))),
        loads=bool(memory) and not stores,
        stores=stores,
        width=16 if vector else 8,
        moved=_moved(name, " ".join(values)) if memory else 0,
        lanes=0,
        scalar=vector and _is_scalar(name, " ".join(values), bool(memory)),
        masked=False,
        spills="sp" in based,
        terms=terms,
        assigns=assigns,
    )


def _of_integers(name: str, memory: bool) -> str:
    if memory:
        return "int" if name.startswith("prf") else "int_move"
    return _INTEGERS.get(name.partition(".")[0], "int")


def _of_vectors(name: str, values: Sequence[str], memory: bool) -> str:
    if memory and any("}[" in operand for operand in values):
        return "insert"
    if memory:
        return "light_shuffle" if _REARRANGES.match(name) else "move"
    if name in _MOVES:
        return _of_moves(name, *values[:2])
    if name == "movi" and _ZERO.match(values[-1]):
        return "move"  # known without executing anything
    if name in ("mul", "mla", "mls") and _LANES_OF_32_BITS.match(values[0]):
        return "multiply_low"
    return next(operation for beginnings, operation in _VECTORS if name.startswith(beginnings))


def _of_moves(name: str, target: str, source: str) -> str:
    if _GENERAL.search(f"{target} {source}"):
        return "transfer"
    if "[" in target:
        return "insert"
    if "[" in source or name == "dup":
        return "light_shuffle"
    return "vector_int" if source.startswith("#") else "move"


def _operands(name: str, values: Sequence[str]) -> tuple[set[str], set[str]]:
    """Registers read and written, those of the address apart."""
    only_reads = name.startswith(("st", "prf", "b.")) or name in (*_COMPARES, *_BRANCHES, *_CALLS)
    targets = 0 if only_reads else 2 if name in _PAIRS else 1
    reads, writes = (set(_registers(" ".join(part))) for part in (values[targets:], values[:targets]))
    narrows_to_upper_half = name.endswith("n2") and name != "trn2"
    changes_bits = name == "bfc" or (name in ("orr", "bic") and "".join(values[1:2]).startswith("#"))
    one_element = targets > 0 and "[" in "".join(values[:1])
    if name.startswith(_KEEPS_TARGET) or narrows_to_upper_half or changes_bits or one_element:
        reads |= writes
    if name in _CALLS:
        writes.add("x30")
    if name == "ret":
        reads.add("x30")
    if name in _SETS_FLAGS:
        writes.add("flags")
    if name.startswith(_READS_FLAGS):
        reads.add("flags")
    return reads, writes


def _moved(name: str, values: str) -> int:
    """Bytes that a load or store of these registers moves."""
    if found := _VECTOR.findall(values):
        once = _REPEATS.match(name)
        return sum(_BYTES[element or register] * int((not once and lanes) or 1) for lanes, element, register in found)
    part = {"b": 1, "h": 2, "w": 4}.get(name[-1:])
    return sum(part or _BYTES[match[1]] for match in _GENERAL.finditer(values)) or 8


def _is_scalar(name: str, values: str, memory: bool) -> bool:
    found = _VECTOR.findall(values)
    lanes, element, register = found[0]
    size = _BYTES[element or register]
    if memory:
        return len(found) == 1 and size <= 4 and (not lanes or name == "ld1r")
    return not lanes and (size <= 4 or (size == 8 and name.startswith("f")))


def _address(memory: str) -> tuple[tuple[str, int], _Terms]:
    """Text and displacement, and its registers with their factors where they are all there is to it."""
    parts = [part.strip() for part in memory.strip("[]!").split(",")]
    number = _NUMBER.match(parts[-1])
    displacement = int(number[1], 0) if number else 0
    parts = parts[:-1] if number else parts
    return (_REGISTER.sub(_canonical, ", ".join(parts)), displacement), _sum_of(parts) or ()


def _sum_of(parts: Sequence[str]) -> _Terms | None:
    """Registers with their factors in ``x0``, or ``x0, x1, lsl #2``; None in anything else."""
    shift = _SHIFT.match(parts[-1])
    factor = 1 << int(shift[1] or 0) if shift else 1
    parts = parts[:-1] if shift else parts
    found = [_REGISTER.fullmatch(part) for part in parts]
    factors = (1, factor) if len(parts) == 2 else (factor,)
    terms = tuple((_canonical(match), times) for match, times in zip(found, factors, strict=False) if match)
    return terms if len(terms) == len(parts) else None


def _moved_base(base: str, after: Sequence[str], displacement: int) -> _Sum | None:
    """What a base is moved by: ``after`` its use, or before it by the displacement."""
    if not after:
        return base, ((base, 1),), displacement
    if number := _NUMBER.match(after[0]):
        return base, ((base, 1),), int(number[1], 0)
    return base, ((base, 1), *((register, 1) for register in _registers(after[0]))), 0


def _assigned(name: str, values: Sequence[str]) -> _Sum | None:
    """Of an instruction whose result is a sum of registers and a constant."""
    if len(values) < 2 or not (_GENERAL.fullmatch(values[0]) or values[0] == "sp"):
        return None
    target, source = "".join(_registers(values[0])), values[1]
    number = _NUMBER.match(values[2] if len(values) > 2 else source)
    terms: _Terms | None = None
    offset = 0
    if name == "mov":
        terms = () if number or source in ("xzr", "wzr") else _sum_of([source])
        offset = int(number[1], 0) if number else 0
    elif name in ("add", "adds", "sub", "subs"):
        sign = 1 if name.startswith("add") else -1
        if number:
            shift = _SHIFT.match(values[3]) if len(values) > 3 else None
            terms, offset = _sum_of([source]), sign * int(number[1], 0) << int((shift and shift[1]) or 0)
        elif (added := _sum_of(values[1:])) and len(added) == 2:
            terms = added[0], (added[1][0], sign * added[1][1])
    elif name in ("lsl", "sbfiz", "ubfiz") and number:
        terms = _sum_of([source, f"lsl #{number[1]}"])
    elif name == "sxtw":
        terms = _sum_of([source])
    return (target, terms, offset) if target and terms is not None else None


def _registers(text: str) -> list[str]:
    return [_canonical(match) for match in _REGISTER.finditer(text)]


def _canonical(match: re.Match[str]) -> str:
    """One name for all widths of a register."""
    letter, number, stack = match.groups()
    return stack or ("x" if letter in "xw" else "v") + number
