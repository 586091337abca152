"""SASS instructions as rows of numbers that warps are executed by."""

from __future__ import annotations

import numpy as np

from cdmpp.errors import DataError
from cdmpp.machine_code.sass import SassKernel
from cdmpp.machine_code.sass_fields import CLASSES, FIELDS, TRUE, UNIFORM_ZERO, ZERO, Kind, Source, Space
from cdmpp.machine_code.sass_opcodes import described

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
_INTEGERS = (
    Kind.ADD, Kind.MULTIPLY, Kind.MULTIPLY_WIDE, Kind.SHIFT_ADD, Kind.SHIFT_ADD_HIGH, Kind.SHIFT_LEFT, Kind.SHIFT_RIGHT,
    Kind.SIGN_EXTEND, Kind.COMPARE,
)  # fmt: skip
_NEAR = 16
"""Instructions between a branch and the call that it avoids, at most."""


def rows_of(kernel: SassKernel) -> np.ndarray:
    """(instructions, len(FIELDS)) int64. ``DataError`` names an instruction that is not known."""
    table = np.tile(_EMPTY, (len(kernel.lines), 1))
    for row, line in zip(table, kernel.lines, strict=True):
        try:
            for name, value in described(line).items():
                row[_AT[name]] = int(value)
        except (KeyError, ValueError, IndexError) as error:
            text = f"{line.name} {', '.join(line.operands)}".strip()
            raise DataError(f"the instruction {text!r} of sm_{kernel.arch} is not known ({error})") from error
        control = line.control
        for name in ("stall", "yields", "write_barrier", "read_barrier", "waits"):
            row[_AT[name]] = getattr(control, name)
    _expect(table)
    _assume(table)
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


def _assume(table: np.ndarray) -> None:
    """Sets ``option`` of loads from global memory that integers are computed from, or compared: indices and flags.

    1: it is zero, as if every lane looked up the first row; 2: it is one, a flag that is set, as in measurements.
    """
    kind, space, width, to, counted = (table[:, _AT[name]] for name in ("kind", "space", "width", "to", "counted"))
    reads = [(table[:, _AT[f"source{i}_kind"]], table[:, _AT[f"source{i}_value"]]) for i in range(3)]
    moves = counted == CLASSES.index("move")
    for place in np.flatnonzero((kind == Kind.LOAD) & (space == Space.GLOBAL) & np.isin(width, (1, 4, 8))):
        here = np.zeros(len(table), bool)
        for is_register, register in reads:
            here |= (is_register == Source.REGISTER) & (register == to[place])
        users = np.flatnonzero(here[place + 1 :])
        if len(users) and kind[user := place + 1 + users[0]] in _INTEGERS and not moves[user]:
            table[place, _AT["option"]] = 2 if width[place] == 1 else 1
