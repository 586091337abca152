"""Rows of SASS opcodes: their effect on integers, predicates and memory.

An opcode that is not listed here is refused by name: a guess would give wrong addresses and counts in silence.
"""

from __future__ import annotations

from collections.abc import Callable

from cdmpp.machine_code.gpu.sass import INSTRUCTION_BYTES, SassLine
from cdmpp.machine_code.gpu.sass_arithmetic import ARITHMETIC
from cdmpp.machine_code.gpu.sass_fields import CLASSES, Kind, Pipe, Space
from cdmpp.machine_code.gpu.sass_operands import (
    CONSTANT,
    IMMEDIATE,
    PREDICATE,
    Row,
    address_of,
    allowed,
    counted_as,
    predicate_of,
    read,
    register_of,
    sources_of,
    width_of,
)


def _moved(kind: Kind, space: Space, counted: str) -> Callable[[SassLine], Row]:
    def described(line: SassLine) -> Row:
        width, name = width_of(line), counted
        if space != Space.LOCAL:
            name = f"{counted}_{8 * max(4, width)}"
        row = counted_as(kind, Pipe.MEMORY, name) | {"space": space, "width": width}
        place = next(i for i, text in enumerate(line.operands) if "[" in text and not CONSTANT.match(text))
        if any(map(PREDICATE.match, line.operands)):
            raise ValueError("a predicate")
        names = ("base", "base_scale", "base_wide", "uniform_base", "offset")
        row |= dict(zip(names, address_of(line.operands[place]), strict=True))
        if kind == Kind.LOAD:
            row |= {"to": register_of(line.operands[0]), "to_count": max(1, width // 4)}
        else:
            row |= sources_of([line.operands[place + 1]])
        return row

    return described


def _copy(line: SassLine) -> Row:
    """From global to shared memory, past the registers."""
    row = counted_as(Kind.COPY, Pipe.MEMORY, "copy") | {"space": Space.GLOBAL, "width": width_of(line)}
    there, here = line.operands
    base, scale, _, uniform, offset = address_of(there)
    row |= {"shared_base": base, "shared_scale": scale, "shared_uniform": uniform, "shared_offset": offset}
    names = ("base", "base_scale", "base_wide", "uniform_base", "offset")
    return row | dict(zip(names, address_of(here), strict=True))


def _branch(line: SassLine) -> Row:
    """``BRA.DIV`` leaves where a warp's lanes are apart that should be together: here they never are."""
    if not set(line.modifiers) <= {"U", "DIV", "CONV", "REL", "NOINC"}:
        raise ValueError(f"modifier {line.modifiers}")
    target = next(text for text in line.operands if IMMEDIATE.match(text))
    row = counted_as(Kind.BRANCH, Pipe.NONE, "branch") | {"target": int(target, 16) // INSTRUCTION_BYTES}
    row["more"] = line.opcode == "CALL"
    if {"DIV", "CONV"} & set(line.modifiers):
        return row | {"kind": Kind.NOTHING}
    return row | read([text for text in line.operands if PREDICATE.match(text)])


def _return(line: SassLine) -> Row:
    if line.modifiers[:1] != ("REL",):
        raise ValueError("absolute")
    return counted_as(Kind.RETURN, Pipe.NONE, "branch") | sources_of([line.operands[0].split()[0]])


def _wait(line: SassLine) -> Row:
    """The row of a wait for copies, until at most so many groups of them are on the way."""
    numbers = [text for text in line.operands if IMMEDIATE.match(text)]
    return counted_as(Kind.WAIT, Pipe.NONE, "wait") | {"option": int(numbers[0], 16) if numbers else 0}


def _barrier(line: SassLine) -> Row:
    allowed(line, "SYNC", "DEFER_BLOCKING")
    return counted_as(Kind.BARRIER, Pipe.NONE, "barrier")


def _as(kind: Kind, counted: str) -> Callable[[SassLine], Row]:
    return lambda line: counted_as(kind, Pipe.NONE, counted)


OPCODES: dict[str, Callable[[SassLine], Row]] = {
    **ARITHMETIC,
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


def described(line: SassLine) -> Row:
    """Return the fields of one instruction. ``KeyError``, ``ValueError``, ``IndexError``: it is not known."""
    uniform = line.opcode.startswith("U") and line.opcode[1:] in OPCODES
    opcode = line.opcode[1:] if uniform else line.opcode
    row = dict(OPCODES[opcode](line))
    if line.guard:
        row["guard"], row["guard_not"] = predicate_of(line.guard)
    if uniform:
        row |= {"pipe": Pipe.UNIFORM, "counted": CLASSES.index("uniform")}
    return row
