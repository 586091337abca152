"""Operands of a SASS instruction as text -> registers, predicates, constants and addresses, as fields of a row."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cdmpp.machine_code.gpu.sass import SassLine
from cdmpp.machine_code.gpu.sass_fields import (
    CLASSES,
    INVERTED,
    MAGNITUDE,
    NEGATED,
    OPERAND_PARTS,
    TRUE,
    UNIFORM,
    UNIFORM_PREDICATES,
    UNIFORM_ZERO,
    ZERO,
    Kind,
    Pipe,
    Source,
)

Row = dict[str, int]
REGISTER = re.compile(r"^[-~]?\|?(U?)R(\d+|Z)(?:\.[A-Z0-9]+)*\|?(?:\.64)?$")
PREDICATE = re.compile(r"^!?(U?)P(\d|T)$")
CONSTANT = re.compile(r"^[-~]?\|?cx?\[(0x[0-9a-f]+)\]\[(0x[0-9a-f]+)\]\|?$")
IMMEDIATE = re.compile(r"^[-~]?0x[0-9a-f]+$")


def register_of(text: str) -> int:
    """Return the place of a register. ``ValueError``: the text is no register."""
    found = REGISTER.match(text)
    if found is None:
        raise ValueError(f"{text} is no register")
    number = (63 if found[1] else ZERO) if found[2] == "Z" else int(found[2])
    return UNIFORM + number if found[1] else number


def predicate_of(text: str) -> tuple[int, int]:
    """Return the place of a predicate, and 1 if it is negated."""
    found = PREDICATE.match(text)
    if found is None:
        raise ValueError(f"{text} is no predicate")
    place = TRUE if found[2] == "T" else int(found[2]) + (UNIFORM_PREDICATES if found[1] else 0)
    return place, int(text.startswith("!"))


def operand_of(text: str) -> tuple[int, int, int]:
    """Return kind, value and flags."""
    flags = NEGATED * text.startswith("-") + INVERTED * text.startswith("~") + MAGNITUDE * ("|" in text)
    if REGISTER.match(text):
        if halves := [part for part in text.split(".")[1:] if part not in ("64", "reuse")]:
            raise ValueError(f"{halves[0]} of {text}")
        return Source.REGISTER, register_of(text), flags
    if IMMEDIATE.match(text):
        return Source.IMMEDIATE, int(text.lstrip("-~"), 16), flags
    if found := CONSTANT.match(text):
        return Source.CONSTANT, int(found[1], 16) << 16 | int(found[2], 16), flags
    raise ValueError(f"{text} is no operand")


def sources_of(texts: Sequence[str]) -> Row:
    """Return the fields of up to three operands."""
    row: Row = {}
    for i, text in enumerate(texts):
        row |= dict(zip((f"source{i}_{part}" for part in OPERAND_PARTS), operand_of(text), strict=True))
    return row


def parts_of(line: SassLine) -> tuple[Row, list[str], list[str]]:
    """Return destinations as fields; sources; predicates that are read."""
    rest = list(line.operands)
    given: list[str] = []
    while PREDICATE.match(rest[0]):
        given.append(rest.pop(0))
    row: Row = {"to": register_of(rest.pop(0)), "to_count": 1}
    while rest and PREDICATE.match(rest[0]):
        given.append(rest.pop(0))
    row |= dict(zip(("to_predicate", "to_second"), (predicate_of(text)[0] for text in given), strict=False))
    return row, [text for text in rest if not PREDICATE.match(text)], [t for t in rest if PREDICATE.match(t)]


def read(predicates: Sequence[str]) -> Row:
    """Return the fields of up to two predicates that are read."""
    row: Row = {}
    for name, text in zip(("predicate", "second"), predicates, strict=False):
        row[name], row[f"{name}_not"] = predicate_of(text)
    return row


def counted_as(kind: Kind, pipe: Pipe, counted: str) -> Row:
    """Return the fields of the operation, its pipe, and the one of ``CLASSES`` that it counts as."""
    return {"kind": kind, "pipe": pipe, "counted": CLASSES.index(counted)}


def allowed(line: SassLine, *modifiers: str) -> frozenset[str]:
    """Return the modifiers of a line; an error names one that is none of ``modifiers``."""
    if other := [one for one in line.modifiers if one not in modifiers]:
        raise ValueError(f"modifier {other[0]}")
    return frozenset(line.modifiers)


_ADDRESS = re.compile(r"\[([^\[\]]*)\]$")
_TERM = re.compile(r"[+-]?[^+-]+")


def address_of(text: str) -> tuple[int, int, int, int, int]:
    """Return base register, its multiplier, whether it has 64 bits, uniform register, offset in bytes."""
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
            uniform = register_of(name)
        else:
            base = register_of(name)
            for note in notes:
                if note == "64":
                    wide = 1
                elif note.startswith("X"):
                    scale = int(note[1:])
                elif note != "U32":
                    raise ValueError(f"{note} in the address {text}")
    return base, scale, wide, uniform, offset


def width_of(line: SassLine) -> int:
    """Return the bytes that a lane moves."""
    named = {"128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}
    return next((width for name, width in named.items() if name in line.modifiers), 4)
