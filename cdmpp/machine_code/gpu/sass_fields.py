"""Fields of a row, which describes one SASS instruction, and the kinds, spaces, pipes and classes that they name."""

from __future__ import annotations

from enum import IntEnum

REGISTERS, PREDICATES = 320, 16
ZERO, UNIFORM, UNIFORM_ZERO = 255, 256, 319
"""RZ; uniform registers come behind the others; URZ."""
TRUE, UNIFORM_PREDICATES = 7, 8
"""PT and UPT; uniform predicates come behind the others."""


class Kind(IntEnum):
    """An instruction does one of these operations."""

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
    """An instruction touches one of these memories."""

    NONE = 0
    GLOBAL = 1
    SHARED = 2
    LOCAL = 3


class Pipe(IntEnum):
    """A pipe is the part of a multiprocessor that executes an instruction."""

    NONE = 0
    FMA = 1
    ALU = 2
    SPECIAL = 3
    MEMORY = 4
    UNIFORM = 5


class Source(IntEnum):
    """An operand comes from one of these places."""

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
"""Classes that instructions are counted as."""
OPERAND_PARTS = ("kind", "value", "flags")
FIELDS = (
    *("kind", "pipe", "counted", "guard", "guard_not"),
    *("to", "to_count", "to_predicate", "to_second"),
    *(f"source{i}_{part}" for i in range(3) for part in OPERAND_PARTS),
    *("predicate", "predicate_not", "second", "second_not", "option", "more"),
    *("space", "width", "base", "base_scale", "base_wide", "uniform_base", "offset"),
    *("shared_base", "shared_scale", "shared_uniform", "shared_offset"),
    *("target", "stall", "yields", "write_barrier", "read_barrier", "waits"),
)
"""Columns of a row. ``shared_``: where a copy from global memory goes."""
