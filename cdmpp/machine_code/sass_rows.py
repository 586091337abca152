"""What a SASS instruction does to integers, predicates and memory, as a row of numbers that warps are executed by.

Floats are unknown while a warp is executed, so of their instructions only the destination matters. What is not listed
here is refused by name: a guess would give wrong addresses and counts in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np

from cdmpp.errors import DataError
from cdmpp.machine_code.sass import INSTRUCTION_BYTES, SassKernel, SassLine

REGISTERS, PREDICATES = 320, 16
ZERO, UNIFORM, UNIFORM_ZERO = 255, 256, 319
"""RZ; uniform registers come behind the others; URZ."""
TRUE, UNIFORM_PREDICATES = 7, 8
"""PT and UPT; uniform predicates come behind the others."""


class Kind(IntEnum):
    """What is computed."""

    NOTHING = 0
    UNKNOWN = 1
    MOVE = 2
    SPECIAL = 3
    ADD = 4
    MULTIPLY = 5
    MULTIPLY_WIDE = 6
    MULTIPLY_HIGH = 7
    SHIFT_ADD = 8
    SHIFT_ADD_HIGH = 9
    SHIFT_LEFT = 10
    SHIFT_RIGHT = 11
    LOGIC = 12
    PREDICATE_LOGIC = 13
    COMPARE = 14
    SELECT = 15
    LEAST = 16
    ABSOLUTE = 17
    PERMUTE = 18
    DOT = 19
    SIGN_EXTEND = 20
    BIT_MASK = 21
    COUNT_BITS = 22
    PREDICATES_TO_REGISTER = 23
    REGISTER_TO_PREDICATES = 24
    BALLOT = 25
    LOAD = 26
    STORE = 27
    COPY = 28
    BRANCH = 29
    RETURN = 30
    EXIT = 31
    BARRIER = 32
    COMMIT = 33
    WAIT = 34


class Space(IntEnum):
    """Memory that is touched."""

    NONE = 0
    GLOBAL = 1
    SHARED = 2
    LOCAL = 3


class Pipe(IntEnum):
    """What executes it."""

    NONE = 0
    FMA = 1
    ALU = 2
    SPECIAL = 3
    MEMORY = 4
    UNIFORM = 5


class Source(IntEnum):
    """Where an operand comes from."""

    REGISTER = 0
    IMMEDIATE = 1
    CONSTANT = 2
    NOWHERE = 3


NEGATED, INVERTED, MAGNITUDE = 1, 2, 4
"""Bits of an operand's ``flags``."""
SPECIALS = ("SR_TID.X", "SR_TID.Y", "SR_TID.Z", "SR_CTAID.X", "SR_CTAID.Y", "SR_CTAID.Z", "SR_LANEID", "SRZ")
"""Special registers, in the order of ``option``; those that are zero for a lone cluster count as ``SRZ``."""
COMPARISONS = ("LT", "EQ", "LE", "GT", "NE", "GE", "F", "T")
CLASSES = (
    *("ffma", "fadd", "fmul", "float", "special", "convert", "multiply", "move", "integer", "uniform", "system"),
    *(f"{move}_{bits}" for move in ("load", "store", "shared_load", "shared_store") for bits in (32, 64, 128)),
    *("local_load", "local_store", "copy", "shuffle", "barrier", "wait", "branch", "control"),
)
"""What instructions are counted as."""
_OPERAND = ("kind", "value", "flags")
FIELDS = (
    *("kind", "pipe", "counted", "guard", "guard_not"),
    *("to", "to_count", "to_predicate", "to_second"),
    *(f"source{i}_{part}" for i in range(3) for part in _OPERAND),
    *("predicate", "predicate_not", "second", "second_not", "option", "more"),
    *("space", "width", "base", "base_scale", "base_wide", "uniform_base", "offset"),
    *("shared_base", "shared_scale", "shared_uniform", "shared_offset"),
    *("target", "stall", "yields", "write_barrier", "read_barrier", "waits"),
)
"""Columns of a row. ``shared_``: where a copy from global memory goes."""
_AT = {name: place for place, name in enumerate(FIELDS)}
_EMPTY = np.zeros(len(FIELDS), np.int64)
for _name in ("guard", "to_predicate", "to_second", "predicate", "second"):
    _EMPTY[_AT[_name]] = TRUE
for _name in ("to", "base", "shared_base", "source0_value", "source1_value", "source2_value"):
    _EMPTY[_AT[_name]] = ZERO
for _name in ("uniform_base", "shared_uniform"):
    _EMPTY[_AT[_name]] = UNIFORM_ZERO
for _name in ("base_scale", "shared_scale"):
    _EMPTY[_AT[_name]] = 1
_EMPTY[_AT["target"]] = -1
_NEAR = 16
"""Instructions between a branch and the call that it avoids, at most."""


def rows_of(kernel: SassKernel) -> np.ndarray:
    """(instructions, len(FIELDS)) int64. ``DataError`` names an instruction that is not known."""
    table = np.tile(_EMPTY, (len(kernel.lines), 1))
    for row, line in zip(table, kernel.lines, strict=True):
        try:
            for name, value in _described(line).items():
                row[_AT[name]] = int(value)
        except (KeyError, ValueError, IndexError) as error:
            text = f"{line.name} {', '.join(line.operands)}".strip()
            raise DataError(f"the instruction {text!r} of sm_{kernel.arch} is not known ({error})") from error
        control = line.control
        for name in ("stall", "yields", "write_barrier", "read_barrier", "waits"):
            row[_AT[name]] = getattr(control, name)
    _expect(table)
    return table


def _expect(table: np.ndarray) -> None:
    """Sets ``option`` of branches: which way one goes that depends on data.

    1: it is taken, 2: it is not, 0: nobody knows. A function is called for denormals, infinities and the like, so that
    the other way is the usual one.
    """
    kind, more, target = (table[:, _AT[name]] for name in ("kind", "more", "target"))
    leaves = np.isin(kind, (Kind.BRANCH, Kind.RETURN, Kind.EXIT))

    def calls(start: int) -> bool:
        ends = np.flatnonzero(leaves[start : start + _NEAR])
        return len(ends) > 0 and kind[start + ends[0]] == Kind.BRANCH and more[start + ends[0]] == 1

    for place in np.flatnonzero((kind == Kind.BRANCH) & (more == 0)):
        onward, there = calls(int(place) + 1), calls(int(target[place]))
        if onward != there:
            table[place, _AT["option"]] = 1 if onward else 2


Row = dict[str, int]


def _described(line: SassLine) -> Row:
    uniform = line.opcode.startswith("U") and line.opcode[1:] in _OPCODES
    opcode = line.opcode[1:] if uniform else line.opcode
    row = dict(_OPCODES[opcode](line))
    if line.guard:
        row["guard"], row["guard_not"] = _predicate(line.guard)
    if uniform:
        row |= {"pipe": Pipe.UNIFORM, "counted": CLASSES.index("uniform")}
    return row


_REGISTER = re.compile(r"^[-~]?\|?(U?)R(\d+|Z)(?:\.[A-Z0-9]+)*\|?(?:\.64)?$")
_PREDICATE = re.compile(r"^!?(U?)P(\d|T)$")
_CONSTANT = re.compile(r"^[-~]?\|?cx?\[(0x[0-9a-f]+)\]\[(0x[0-9a-f]+)\]\|?$")
_IMMEDIATE = re.compile(r"^[-~]?0x[0-9a-f]+$")


def _register(text: str) -> int:
    found = _REGISTER.match(text)
    if found is None:
        raise ValueError(f"{text} is no register")
    number = (63 if found[1] else ZERO) if found[2] == "Z" else int(found[2])
    return UNIFORM + number if found[1] else number


def _predicate(text: str) -> tuple[int, int]:
    """Its place, and whether it is negated."""
    found = _PREDICATE.match(text)
    if found is None:
        raise ValueError(f"{text} is no predicate")
    place = TRUE if found[2] == "T" else int(found[2]) + (UNIFORM_PREDICATES if found[1] else 0)
    return place, int(text.startswith("!"))


def _operand(text: str) -> tuple[int, int, int]:
    """Kind, value and flags."""
    flags = NEGATED * text.startswith("-") + INVERTED * text.startswith("~") + MAGNITUDE * ("|" in text)
    if _REGISTER.match(text):
        if halves := [part for part in text.split(".")[1:] if part not in ("64", "reuse")]:
            raise ValueError(f"{halves[0]} of {text}")
        return Source.REGISTER, _register(text), flags
    if _IMMEDIATE.match(text):
        return Source.IMMEDIATE, int(text.lstrip("-~"), 16), flags
    if found := _CONSTANT.match(text):
        return Source.CONSTANT, int(found[1], 16) << 16 | int(found[2], 16), flags
    raise ValueError(f"{text} is no operand")


def _sources(texts: Sequence[str]) -> Row:
    row: Row = {}
    for i, text in enumerate(texts):
        row |= dict(zip((f"source{i}_{part}" for part in _OPERAND), _operand(text), strict=True))
    return row


def _split(line: SassLine) -> tuple[Row, list[str], list[str]]:
    """Destinations as fields; sources; predicates that are read."""
    rest = list(line.operands)
    given: list[str] = []
    while _PREDICATE.match(rest[0]):
        given.append(rest.pop(0))
    row: Row = {"to": _register(rest.pop(0)), "to_count": 1}
    while rest and _PREDICATE.match(rest[0]):
        given.append(rest.pop(0))
    row |= dict(zip(("to_predicate", "to_second"), (_predicate(text)[0] for text in given), strict=False))
    return row, [text for text in rest if not _PREDICATE.match(text)], [t for t in rest if _PREDICATE.match(t)]


def _read(predicates: Sequence[str]) -> Row:
    row: Row = {}
    for name, text in zip(("predicate", "second"), predicates, strict=False):
        row[name], row[f"{name}_not"] = _predicate(text)
    return row


def _counted(kind: Kind, pipe: Pipe, counted: str) -> Row:
    return {"kind": kind, "pipe": pipe, "counted": CLASSES.index(counted)}


def _allowed(line: SassLine, *modifiers: str) -> frozenset[str]:
    """Its modifiers; an error names one that is none of ``modifiers``."""
    if other := [one for one in line.modifiers if one not in modifiers]:
        raise ValueError(f"modifier {other[0]}")
    return frozenset(line.modifiers)


def _float(counted: str, pipe: Pipe) -> Callable[[SassLine], Row]:
    """Whatever is computed, it is a float, or a comparison of floats."""

    def described(line: SassLine) -> Row:
        if "F64" in line.modifiers or "S64" in line.modifiers or "U64" in line.modifiers:
            raise ValueError("64 bits")
        row = _counted(Kind.UNKNOWN, pipe, counted)
        registers = [text for text in line.operands if _REGISTER.match(text)]
        given = [text for text in line.operands[: line.operands.index(registers[0])] if _PREDICATE.match(text)]
        if _PREDICATE.match(line.operands[0]) and len(given) == len(line.operands[:2]):  # FSETP P0, PT, ...
            return row | {"to_predicate": _predicate(given[0])[0], "to_second": _predicate(given[1])[0]}
        if given:  # SHFL PT, R1, ...
            row["to_predicate"] = _predicate(given[0])[0]
        return row | {"to": _register(registers[0]), "to_count": 1}

    return described


def _half_float(line: SassLine) -> Row:
    """``HFMA2 R, -RZ, RZ, a, b`` is how a constant is moved: both halves stand in the encoding."""
    if line.operands[1:3] == ("-RZ", "RZ") and len(line.operands) == 5:
        row = _counted(Kind.MOVE, Pipe.FMA, "move") | {"to": _register(line.operands[0]), "to_count": 1}
        return row | {"source0_kind": Source.IMMEDIATE, "source0_value": line.low >> 32}
    return _float("ffma", Pipe.FMA)(line)


def _check_of_division(line: SassLine) -> Row:
    """Says whether a division needs the slow path: denormals and the like, hence never."""
    row = _counted(Kind.PREDICATE_LOGIC, Pipe.SPECIAL, "special")
    return row | {"to_predicate": _predicate(line.operands[0])[0], "option": 0}


def _move(line: SassLine) -> Row:
    _allowed(line, "64", "FILL", "128", "U32")
    count = _width(line) // 4 if line.opcode.lstrip("U").startswith("LDC") else 1
    row, sources, _ = _split(line)
    return _counted(Kind.MOVE, Pipe.ALU, "move") | row | {"to_count": count} | _sources(sources[:1])


def _special(line: SassLine) -> Row:
    name = "SRZ" if line.operands[1] in ("SR_CgaCtaId", "SR_SWINHI") else line.operands[1]
    wide = line.opcode == "CS2R" and "32" not in line.modifiers
    row = _counted(Kind.SPECIAL, Pipe.ALU if line.opcode == "CS2R" else Pipe.SPECIAL, "system")
    if line.opcode == "CS2R":
        row["counted"] = CLASSES.index("move")
    return row | {"to": _register(line.operands[0]), "to_count": 1 + wide, "option": SPECIALS.index(name)}


def _add(line: SassLine) -> Row:
    carries = "X" in _allowed(line, "X")
    row, sources, predicates = _split(line)
    return (
        _counted(Kind.ADD, Pipe.ALU, "integer") | row | _sources(sources)
        | (_read(predicates) if carries else {}) | {"option": len(predicates) if carries else 0}
    )  # fmt: skip


def _multiply(line: SassLine) -> Row:
    given = _allowed(line, "X", "U32", "WIDE", "HI", "MOV", "IADD", "SHL")
    row, sources, predicates = _split(line)
    kind = Kind.MULTIPLY_WIDE if "WIDE" in given else Kind.MULTIPLY_HIGH if "HI" in given else Kind.MULTIPLY
    counted = "move" if "MOV" in given else "integer" if given & {"IADD", "SHL"} else "multiply"
    row = _counted(kind, Pipe.FMA, counted) | row | _sources(sources) | _read(predicates)
    return row | {"to_count": 1 + ("WIDE" in given), "option": "X" in given, "more": "U32" in given}


def _shift_add(line: SassLine) -> Row:
    given = _allowed(line, "HI", "X", "SX32")
    row, sources, predicates = _split(line)
    shift = _operand(sources.pop())[1]
    kind = Kind.SHIFT_ADD_HIGH if "HI" in given else Kind.SHIFT_ADD
    row = _counted(kind, Pipe.ALU, "integer") | row | _sources(sources) | _read(predicates)
    return row | {"option": shift, "more": ("X" in given) + 2 * ("SX32" in given)}


def _shift(line: SassLine) -> Row:
    given = _allowed(line, "L", "R", "U32", "S32", "U64", "S64", "HI", "W")
    row, sources, _ = _split(line)
    kind = Kind.SHIFT_LEFT if "L" in given else Kind.SHIFT_RIGHT
    wide, signed = bool(given & {"U64", "S64"}), bool(given & {"S32", "S64"})
    row = _counted(kind, Pipe.ALU, "integer") | row | _sources(sources)
    return row | {"option": "HI" in given, "more": signed + 2 * wide + 4 * ("W" in given)}


def _logic(line: SassLine) -> Row:
    _allowed(line, "LUT")
    row, sources, predicates = _split(line)
    table = _operand(sources[3])[1]
    return _counted(Kind.LOGIC, Pipe.ALU, "integer") | row | _sources(sources[:3]) | {"option": table}


def _predicate_logic(line: SassLine) -> Row:
    _allowed(line, "LUT")
    first, second, *read, table, more = line.operands
    row = _counted(Kind.PREDICATE_LOGIC, Pipe.ALU, "integer")
    row |= {"to_predicate": _predicate(first)[0], "to_second": _predicate(second)[0]}
    for i, text in enumerate(read):
        row[f"source{i}_value"], row[f"source{i}_flags"] = _predicate(text)
    return row | {"option": int(table, 16), "more": int(more, 16)}


def _compare(line: SassLine) -> Row:
    given = _allowed(line, *COMPARISONS, "U32", "AND", "OR", "XOR", "EX")
    first, second, left, right, *predicates = line.operands
    row = _counted(Kind.COMPARE, Pipe.ALU, "integer") | _sources([left, right]) | _read(predicates)
    row |= {"to_predicate": _predicate(first)[0], "to_second": _predicate(second)[0]}
    (how,) = given & set(COMPARISONS)
    more = ("U32" in given) + 2 * ("OR" in given) + 4 * ("XOR" in given) + 8 * ("EX" in given)
    return row | {"option": COMPARISONS.index(how), "more": more}


def _select(line: SassLine) -> Row:
    row, sources, predicates = _split(line)
    if any("|" in text or (line.opcode == "FSEL" and text.startswith("-")) for text in sources):
        return _float("float", Pipe.ALU)(line)
    counted = "float" if line.opcode == "FSEL" else "integer"
    return _counted(Kind.SELECT, Pipe.ALU, counted) | row | _sources(sources) | _read(predicates)


def _least(line: SassLine) -> Row:
    given = _allowed(line, "U32", "S32")
    row, sources, predicates = _split(line)
    if len(sources) != 2 or len(predicates) != 1:
        raise ValueError("operands")
    row = _counted(Kind.LEAST, Pipe.ALU, "integer") | row | _sources(sources) | _read(predicates)
    return row | {"more": "U32" in given}


def _plain(kind: Kind, *modifiers: str, pipe: Pipe = Pipe.ALU) -> Callable[[SassLine], Row]:
    """A destination and up to three sources; ``more``: unsigned."""

    def described(line: SassLine) -> Row:
        given = _allowed(line, *modifiers)
        row, sources, _ = _split(line)
        return _counted(kind, pipe, "integer") | row | _sources(sources) | {"more": "U32" in given}

    return described


def _dot(line: SassLine) -> Row:
    given = _allowed(line, "2A", "LO", "HI", "U16", "U8")
    if not {"2A", "U16", "U8"} <= given:
        raise ValueError("signed or of four")
    row, sources, _ = _split(line)
    return _counted(Kind.DOT, Pipe.FMA, "multiply") | row | _sources(sources) | {"option": "HI" in given}


def _predicates_to_register(line: SassLine) -> Row:
    given = _allowed(line, "B1", "B2", "B3")
    to, source, kept, mask = line.operands
    if source != "PR":
        raise ValueError(source)
    row = _counted(Kind.PREDICATES_TO_REGISTER, Pipe.ALU, "move") | {"to": _register(to), "to_count": 1}
    return row | _sources([kept]) | {"option": int(mask, 16), "more": 8 * _byte(given)}


def _register_to_predicates(line: SassLine) -> Row:
    to, source, mask = line.operands
    if to != "PR":
        raise ValueError(to)
    name, *part = source.split(".")
    row = _counted(Kind.REGISTER_TO_PREDICATES, Pipe.ALU, "move") | _sources([name])
    return row | {"option": int(mask, 16), "more": 8 * _byte(part)}


def _byte(names: Sequence[str] | frozenset[str]) -> int:
    return next((int(name[1]) for name in names if name in ("B1", "B2", "B3")), 0)


def _ballot(line: SassLine) -> Row:
    _allowed(line, "ANY", "ALL", "EQ")
    row = _counted(Kind.BALLOT, Pipe.ALU, "integer")
    row["to"] = _register(next((text for text in line.operands if _REGISTER.match(text)), "RZ"))
    row["to_count"] = 1
    if _REGISTER.match(line.operands[0]):
        row["to_predicate"] = _predicate(line.operands[1])[0]
    else:
        row["to_predicate"] = _predicate(line.operands[0])[0]
    return row | _read(line.operands[-1:])


_ADDRESS = re.compile(r"\[([^\[\]]*)\]$")
_TERM = re.compile(r"[+-]?[^+-]+")


def _address(text: str) -> tuple[int, int, int, int, int]:
    """Base register, what it is multiplied by, whether it has 64 bits, uniform register, offset in bytes."""
    base, scale, wide, uniform, offset = ZERO, 1, 0, UNIFORM_ZERO, 0
    found = _ADDRESS.search(text)
    if found is None:
        raise ValueError(f"{text} is no address")
    for part in _TERM.findall(found[1]):
        sign, term = (-1 if part.startswith("-") else 1), part.lstrip("+-").strip()
        name, *notes = term.split(".")
        if name.startswith("0x"):
            offset += sign * int(name, 16)
        elif name.startswith("UR"):
            uniform = _register(name)
        else:
            base = _register(name)
            for note in notes:
                if note == "64":
                    wide = 1
                elif note.startswith("X"):
                    scale = int(note[1:])
                elif note != "U32":
                    raise ValueError(f"{note} in the address {text}")
    return base, scale, wide, uniform, offset


def _width(line: SassLine) -> int:
    """Bytes that a lane moves."""
    named = {"128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}
    return next((width for name, width in named.items() if name in line.modifiers), 4)


def _moved(kind: Kind, space: Space, counted: str) -> Callable[[SassLine], Row]:
    def described(line: SassLine) -> Row:
        width, name = _width(line), counted
        if space != Space.LOCAL:
            name = f"{counted}_{8 * max(4, width)}"
        row = _counted(kind, Pipe.MEMORY, name) | {"space": space, "width": width}
        place = next(i for i, text in enumerate(line.operands) if "[" in text and not _CONSTANT.match(text))
        if any(map(_PREDICATE.match, line.operands)):
            raise ValueError("a predicate")
        names = ("base", "base_scale", "base_wide", "uniform_base", "offset")
        row |= dict(zip(names, _address(line.operands[place]), strict=True))
        if kind == Kind.LOAD:
            row |= {"to": _register(line.operands[0]), "to_count": max(1, width // 4)}
        else:
            row |= _sources([line.operands[place + 1]])
        return row

    return described


def _copy(line: SassLine) -> Row:
    """From global to shared memory, past the registers."""
    row = _counted(Kind.COPY, Pipe.MEMORY, "copy") | {"space": Space.GLOBAL, "width": _width(line)}
    there, here = line.operands
    base, scale, _, uniform, offset = _address(there)
    row |= {"shared_base": base, "shared_scale": scale, "shared_uniform": uniform, "shared_offset": offset}
    names = ("base", "base_scale", "base_wide", "uniform_base", "offset")
    return row | dict(zip(names, _address(here), strict=True))


def _branch(line: SassLine) -> Row:
    """``BRA.DIV`` leaves where a warp's lanes are apart that should be together: here they never are."""
    if not set(line.modifiers) <= {"U", "DIV", "CONV", "REL", "NOINC"}:
        raise ValueError(f"modifier {line.modifiers}")
    target = next(text for text in line.operands if _IMMEDIATE.match(text))
    row = _counted(Kind.BRANCH, Pipe.NONE, "branch") | {"target": int(target, 16) // INSTRUCTION_BYTES}
    row["more"] = line.opcode == "CALL"
    if {"DIV", "CONV"} & set(line.modifiers):
        return row | {"kind": Kind.NOTHING}
    return row | _read([text for text in line.operands if _PREDICATE.match(text)])


def _return(line: SassLine) -> Row:
    if line.modifiers[:1] != ("REL",):
        raise ValueError("absolute")
    return _counted(Kind.RETURN, Pipe.NONE, "branch") | _sources([line.operands[0].split()[0]])


def _wait(line: SassLine) -> Row:
    """For copies, until no more groups of them than so many are on the way."""
    numbers = [text for text in line.operands if _IMMEDIATE.match(text)]
    return _counted(Kind.WAIT, Pipe.NONE, "wait") | {"option": int(numbers[0], 16) if numbers else 0}


def _barrier(line: SassLine) -> Row:
    _allowed(line, "SYNC", "DEFER_BLOCKING")
    return _counted(Kind.BARRIER, Pipe.NONE, "barrier")


def _as(kind: Kind, counted: str) -> Callable[[SassLine], Row]:
    return lambda line: _counted(kind, Pipe.NONE, counted)


_OPCODES: dict[str, Callable[[SassLine], Row]] = {
    "FFMA": _float("ffma", Pipe.FMA),
    "FADD": _float("fadd", Pipe.FMA),
    "FMUL": _float("fmul", Pipe.FMA),
    **dict.fromkeys(("FMNMX", "FSETP", "FSET"), _float("float", Pipe.ALU)),
    **dict.fromkeys(("HFMA2", "HADD2", "HMUL2"), _half_float),
    "MUFU": _float("special", Pipe.SPECIAL),
    "FCHK": _check_of_division,
    **dict.fromkeys(("F2F", "I2F", "F2I", "FRND", "I2FP", "F2FP"), _float("convert", Pipe.SPECIAL)),
    "SHFL": _float("shuffle", Pipe.MEMORY),
    **dict.fromkeys(("MOV", "R2UR", "LDC", "LDCU"), _move),
    **dict.fromkeys(("S2R", "S2UR", "CS2R"), _special),
    **dict.fromkeys(("IADD3", "VIADD"), _add),
    "IMAD": _multiply,
    "LEA": _shift_add,
    "SHF": _shift,
    "LOP3": _logic,
    "PLOP3": _predicate_logic,
    "ISETP": _compare,
    **dict.fromkeys(("SEL", "FSEL"), _select),
    **dict.fromkeys(("IMNMX", "VIMNMX"), _least),
    "IABS": _plain(Kind.ABSOLUTE),
    "PRMT": _plain(Kind.PERMUTE),
    "SGXT": _plain(Kind.SIGN_EXTEND, "U32"),
    "BMSK": _plain(Kind.BIT_MASK),
    "POPC": _plain(Kind.COUNT_BITS, pipe=Pipe.SPECIAL),
    "IDP": _dot,
    "P2R": _predicates_to_register,
    "R2P": _register_to_predicates,
    **dict.fromkeys(("VOTE", "VOTEU"), _ballot),
    "LDG": _moved(Kind.LOAD, Space.GLOBAL, "load"),
    "STG": _moved(Kind.STORE, Space.GLOBAL, "store"),
    "LDS": _moved(Kind.LOAD, Space.SHARED, "shared_load"),
    "STS": _moved(Kind.STORE, Space.SHARED, "shared_store"),
    "LDL": _moved(Kind.LOAD, Space.LOCAL, "local_load"),
    "STL": _moved(Kind.STORE, Space.LOCAL, "local_store"),
    "LDGSTS": _copy,
    **dict.fromkeys(("BRA", "CALL"), _branch),
    "RET": _return,
    "EXIT": _as(Kind.EXIT, "control"),
    "BAR": _barrier,
    "LDGDEPBAR": _as(Kind.COMMIT, "wait"),
    "DEPBAR": _wait,
    **dict.fromkeys(
        ("NOP", "BSSY", "BSYNC", "WARPSYNC", "YIELD", "MEMBAR", "ERRBAR", "CCTL", "BREAK"), _as(Kind.NOTHING, "control")
    ),
}
"""Opcode, without the U of uniform ones -> what describes it."""
