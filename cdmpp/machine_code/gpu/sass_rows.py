"""SASS instructions as rows of numbers that warps are executed by."""

from __future__ import annotations

import re

import numpy as np

from cdmpp.errors import DataError
from cdmpp.machine_code.gpu.sass import SassKernel
from cdmpp.machine_code.gpu.sass_fields import FIELDS, TRUE, UNIFORM_ZERO, ZERO, Kind, Space
from cdmpp.machine_code.gpu.sass_opcodes import described

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
_INTEGERS = {
    Kind.ADD, Kind.MULTIPLY, Kind.MULTIPLY_WIDE, Kind.SHIFT_ADD, Kind.SHIFT_ADD_HIGH, Kind.SHIFT_LEFT, Kind.SHIFT_RIGHT,
    Kind.SIGN_EXTEND, Kind.COMPARE,
}  # fmt: skip
_KEPT = {Kind.MOVE, Kind.LOGIC, Kind.SELECT, Kind.LEAST, Kind.PERMUTE}
"""Operations that may be done to an integer as well, but also to a float."""
_REGISTERS = re.compile(r"\bR(\d+)\b")
_READ_FIRST = {Kind.STORE, Kind.BRANCH, Kind.RETURN, Kind.REGISTER_TO_PREDICATES}
"""Kinds whose first operand is no destination."""
_NEAR = 16
"""Instructions between a branch and the call that it avoids, at most."""


def rows_of(kernel: SassKernel) -> np.ndarray:
    """Return (instructions, len(FIELDS)) int64. ``DataError`` names an instruction that is not known."""
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
    _assume(table, kernel)
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


def _assume(table: np.ndarray, kernel: SassKernel) -> None:
    """Sets ``option`` of loads from global memory of which only integers are computed: indices and flags.

    1: it is zero, as if every lane looked up the first row; 2: it is one, a flag that is set, as in measurements.
    """
    kind, space, width, to = (table[:, _AT[name]] for name in ("kind", "space", "width", "to"))
    loads = np.flatnonzero((kind == Kind.LOAD) & (space == Space.GLOBAL) & np.isin(width, (1, 4, 8)))
    read = [
        {int(number) for text in line.operands[of not in _READ_FIRST :] for number in _REGISTERS.findall(text)}
        for line, of in zip(kernel.lines, kind.tolist(), strict=True)
    ]
    for place in loads.tolist():
        loaded, integer = int(to[place]), False
        for user in range(place + 1, len(table)):
            if loaded in read[user]:
                integer |= kind[user] in _INTEGERS
                if kind[user] not in _INTEGERS and kind[user] not in _KEPT:
                    integer = False
                    break
            if to[user] == loaded:
                break
        if integer:
            table[place, _AT["option"]] = 2 if width[place] == 1 else 1
