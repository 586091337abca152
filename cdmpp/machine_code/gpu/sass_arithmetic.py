"""Rows of SASS instructions between registers.

Floats are unknown while a warp is executed, so of their instructions only the destination matters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from cdmpp.machine_code.gpu.sass import SassLine
from cdmpp.machine_code.gpu.sass_fields import CLASSES, COMPARISONS, SPECIALS, Kind, Pipe, Source
from cdmpp.machine_code.gpu.sass_operands import (
    PREDICATE,
    REGISTER,
    Row,
    allowed,
    counted_as,
    operand_of,
    parts_of,
    predicate_of,
    read,
    register_of,
    sources_of,
    width_of,
)

IS_BITS = re.compile(r"^(0x|U?R\d|U?RZ|cx?\[)")
"""An operand whose bits are known: no number such as 1.5 or +INF, and not negated."""


def _float(counted: str, pipe: Pipe) -> Callable[[SassLine], Row]:
    """Whatever is computed, it is a float, or a comparison of floats."""

    def described(line: SassLine) -> Row:
        if "F64" in line.modifiers:
            raise ValueError("64 bits")
        wide = line.opcode == "F2I" and not {"S64", "U64"}.isdisjoint(line.modifiers)
        row = counted_as(Kind.UNKNOWN, pipe, counted)
        registers = [text for text in line.operands if REGISTER.match(text)]
        given = [text for text in line.operands[: line.operands.index(registers[0])] if PREDICATE.match(text)]
        if PREDICATE.match(line.operands[0]) and len(given) == len(line.operands[:2]):  # FSETP P0, PT, ...
            return row | {"to_predicate": predicate_of(given[0])[0], "to_second": predicate_of(given[1])[0]}
        if given:  # SHFL PT, R1, ...
            row["to_predicate"] = predicate_of(given[0])[0]
        return row | {"to": register_of(registers[0]), "to_count": 1 + wide}

    return described


def _half_float(line: SassLine) -> Row:
    """``HFMA2 R, -RZ, RZ, a, b`` is how a constant is moved: both halves stand in the encoding."""
    if line.operands[1:3] == ("-RZ", "RZ") and len(line.operands) == 5:
        row = counted_as(Kind.MOVE, Pipe.FMA, "move") | {"to": register_of(line.operands[0]), "to_count": 1}
        return row | {"source0_kind": Source.IMMEDIATE, "source0_value": line.low >> 32}
    return _float("ffma", Pipe.FMA)(line)


def _check_of_division(line: SassLine) -> Row:
    """Says whether a division needs the slow path: denormals and the like, hence never."""
    row = counted_as(Kind.PREDICATE_LOGIC, Pipe.SPECIAL, "special")
    return row | {"to_predicate": predicate_of(line.operands[0])[0], "option": 0}


def _move(line: SassLine) -> Row:
    allowed(line, "64", "FILL", "128", "U32")
    count = width_of(line) // 4 if line.opcode.lstrip("U").startswith("LDC") else 1
    row, sources, _ = parts_of(line)
    return counted_as(Kind.MOVE, Pipe.ALU, "move") | row | {"to_count": count} | sources_of(sources[:1])


def _special(line: SassLine) -> Row:
    name = "SRZ" if line.operands[1] in ("SR_CgaCtaId", "SR_SWINHI") else line.operands[1]
    wide = line.opcode == "CS2R" and "32" not in line.modifiers
    row = counted_as(Kind.SPECIAL, Pipe.ALU if line.opcode == "CS2R" else Pipe.SPECIAL, "system")
    if line.opcode == "CS2R":
        row["counted"] = CLASSES.index("move")
    return row | {"to": register_of(line.operands[0]), "to_count": 1 + wide, "option": SPECIALS.index(name)}


def _add(line: SassLine) -> Row:
    carries = "X" in allowed(line, "X")
    row, sources, predicates = parts_of(line)
    return (
        counted_as(Kind.ADD, Pipe.ALU, "integer") | row | sources_of(sources)
        | (read(predicates) if carries else {}) | {"option": len(predicates) if carries else 0}
    )  # fmt: skip


def _multiply(line: SassLine) -> Row:
    given = allowed(line, "X", "U32", "WIDE", "HI", "MOV", "IADD", "SHL")
    row, sources, predicates = parts_of(line)
    kind = Kind.MULTIPLY_WIDE if "WIDE" in given else Kind.MULTIPLY_HIGH if "HI" in given else Kind.MULTIPLY
    counted = "move" if "MOV" in given else "integer" if given & {"IADD", "SHL"} else "multiply"
    row = counted_as(kind, Pipe.FMA, counted) | row | sources_of(sources) | read(predicates)
    return row | {"to_count": 1 + ("WIDE" in given), "option": "X" in given, "more": "U32" in given}


def _shift_add(line: SassLine) -> Row:
    given = allowed(line, "HI", "X", "SX32")
    row, sources, predicates = parts_of(line)
    shift = operand_of(sources.pop())[1]
    kind = Kind.SHIFT_ADD_HIGH if "HI" in given else Kind.SHIFT_ADD
    row = counted_as(kind, Pipe.ALU, "integer") | row | sources_of(sources) | read(predicates)
    return row | {"option": shift, "more": ("X" in given) + 2 * ("SX32" in given)}


def _shift(line: SassLine) -> Row:
    given = allowed(line, "L", "R", "U32", "S32", "U64", "S64", "HI", "W")
    row, sources, _ = parts_of(line)
    kind = Kind.SHIFT_LEFT if "L" in given else Kind.SHIFT_RIGHT
    wide, signed = bool(given & {"U64", "S64"}), bool(given & {"S32", "S64"})
    row = counted_as(kind, Pipe.ALU, "integer") | row | sources_of(sources)
    return row | {"option": "HI" in given, "more": signed + 2 * wide + 4 * ("W" in given)}


def _logic(line: SassLine) -> Row:
    allowed(line, "LUT")
    row, sources, predicates = parts_of(line)
    table = operand_of(sources[3])[1]
    return counted_as(Kind.LOGIC, Pipe.ALU, "integer") | row | sources_of(sources[:3]) | {"option": table}


def _predicate_logic(line: SassLine) -> Row:
    allowed(line, "LUT")
    first, second, *read, table, more = line.operands
    row = counted_as(Kind.PREDICATE_LOGIC, Pipe.ALU, "integer")
    row |= {"to_predicate": predicate_of(first)[0], "to_second": predicate_of(second)[0]}
    for i, text in enumerate(read):
        row[f"source{i}_value"], row[f"source{i}_flags"] = predicate_of(text)
    return row | {"option": int(table, 16), "more": int(more, 16)}


def _compare(line: SassLine) -> Row:
    given = allowed(line, *COMPARISONS, "U32", "AND", "OR", "XOR", "EX")
    first, second, left, right, *predicates = line.operands
    row = counted_as(Kind.COMPARE, Pipe.ALU, "integer") | sources_of([left, right]) | read(predicates)
    row |= {"to_predicate": predicate_of(first)[0], "to_second": predicate_of(second)[0]}
    (how,) = given & set(COMPARISONS)
    more = ("U32" in given) + 2 * ("OR" in given) + 4 * ("XOR" in given) + 8 * ("EX" in given)
    return row | {"option": COMPARISONS.index(how), "more": more}


def _select(line: SassLine) -> Row:
    row, sources, predicates = parts_of(line)
    if any("|" in text or (line.opcode == "FSEL" and not IS_BITS.match(text)) for text in sources):
        return _float("float", Pipe.ALU)(line)
    counted = "float" if line.opcode == "FSEL" else "integer"
    return counted_as(Kind.SELECT, Pipe.ALU, counted) | row | sources_of(sources) | read(predicates)


def _least(line: SassLine) -> Row:
    given = allowed(line, "U32", "S32")
    row, sources, predicates = parts_of(line)
    if len(sources) != 2 or len(predicates) != 1:
        raise ValueError("operands")
    row = counted_as(Kind.LEAST, Pipe.ALU, "integer") | row | sources_of(sources) | read(predicates)
    return row | {"more": "U32" in given}


def _plain(kind: Kind, *modifiers: str, pipe: Pipe = Pipe.ALU) -> Callable[[SassLine], Row]:
    """A destination and up to three sources; ``more``: unsigned."""

    def described(line: SassLine) -> Row:
        given = allowed(line, *modifiers)
        row, sources, _ = parts_of(line)
        return counted_as(kind, pipe, "integer") | row | sources_of(sources) | {"more": "U32" in given}

    return described


def _dot(line: SassLine) -> Row:
    given = allowed(line, "2A", "LO", "HI", "U16", "U8")
    if not {"2A", "U16", "U8"} <= given:
        raise ValueError("signed or of four")
    row, sources, _ = parts_of(line)
    return counted_as(Kind.DOT, Pipe.FMA, "multiply") | row | sources_of(sources) | {"option": "HI" in given}


def _predicates_to_register(line: SassLine) -> Row:
    given = allowed(line, "B1", "B2", "B3")
    to, source, kept, mask = line.operands
    if source != "PR":
        raise ValueError(source)
    row = counted_as(Kind.PREDICATES_TO_REGISTER, Pipe.ALU, "move") | {"to": register_of(to), "to_count": 1}
    return row | sources_of([kept]) | {"option": int(mask, 16), "more": 8 * _byte(given)}


def _register_to_predicates(line: SassLine) -> Row:
    to, source, mask = line.operands
    if to != "PR":
        raise ValueError(to)
    name, *part = source.split(".")
    row = counted_as(Kind.REGISTER_TO_PREDICATES, Pipe.ALU, "move") | sources_of([name])
    return row | {"option": int(mask, 16), "more": 8 * _byte(part)}


def _byte(names: Sequence[str] | frozenset[str]) -> int:
    return next((int(name[1]) for name in names if name in ("B1", "B2", "B3")), 0)


def _ballot(line: SassLine) -> Row:
    allowed(line, "ANY", "ALL", "EQ")
    row = counted_as(Kind.BALLOT, Pipe.ALU, "integer")
    row["to"] = register_of(next((text for text in line.operands if REGISTER.match(text)), "RZ"))
    row["to_count"] = 1
    if REGISTER.match(line.operands[0]):
        row["to_predicate"] = predicate_of(line.operands[1])[0]
    else:
        row["to_predicate"] = predicate_of(line.operands[0])[0]
    return row | read(line.operands[-1:])


ARITHMETIC: dict[str, Callable[[SassLine], Row]] = {
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
    "VIMNMX3": _float("integer", Pipe.ALU),
    "IABS": _plain(Kind.ABSOLUTE),
    "PRMT": _plain(Kind.PERMUTE),
    "SGXT": _plain(Kind.SIGN_EXTEND, "U32"),
    "BMSK": _plain(Kind.BIT_MASK),
    "POPC": _plain(Kind.COUNT_BITS, pipe=Pipe.SPECIAL),
    "IDP": _dot,
    "P2R": _predicates_to_register,
    "R2P": _register_to_predicates,
    **dict.fromkeys(("VOTE", "VOTEU"), _ballot),
}
"""Opcode, without the U of uniform ones -> what describes it."""
