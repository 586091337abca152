"""Instructions that compute with floats, for all lanes at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.counts.gpu.grid import (
    Grid,
    NotKnownError,
    Read,
    is_register,
    is_truth,
    put,
    put_truth,
    real,
    truth,
    word,
)
from benchmarks.counts.gpu.operations import Run, only, parts, signed, simple
from benchmarks.counts.gpu.whole import compared
from cdmpp.machine_code.gpu.sass import SassLine

_ROUNDED = {"RZ": np.trunc, "RM": np.floor, "RP": np.ceil, "TRUNC": np.trunc, "FLOOR": np.floor, "CEIL": np.ceil}
_HALF = re.compile(r"\.(H0_H0|H1_H1|F32)")


def _bits(value: Any) -> np.ndarray:
    return np.ascontiguousarray(value, np.float32).view(np.uint32)


def _reals(line: SassLine, what: Callable[..., Any], *modifiers: str) -> Run:
    """One float of floats; sums are kept in 64 bits until they are rounded once."""
    given = only(line, "FTZ", *modifiers)
    to, _, sources, _ = parts(line)

    def rounded(*values: np.ndarray) -> np.ndarray:
        found = what(*(value.astype(np.float64) for value in values))
        return _bits(np.clip(found, 0, 1) if "SAT" in given else found)

    return simple(to, [real(text) for text in sources], rounded)


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "RCP": lambda x: 1 / x,
    "RSQ": lambda x: 1 / np.sqrt(x),
    "SQRT": np.sqrt,
    "EX2": np.exp2,
    "LG2": np.log2,
    "TANH": np.tanh,
}


def _special(line: SassLine) -> Run:
    (name,) = only(line, *_FUNCTIONS)
    return _reals(SassLine(line.guard, "MUFU", (), line.operands, line.low, line.control), _FUNCTIONS[name])


def _least(line: SassLine) -> Run:
    only(line, "FTZ")
    to, _, sources, (read,) = parts(line)

    def what(least: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _bits(np.where(least, np.fmin(a, b), np.fmax(a, b)))

    return simple(to, [truth(read), real(sources[0]), real(sources[1])], what)


_ORDERED = {"LT", "EQ", "LE", "GT", "GE", "NE"}


def _compare(line: SassLine) -> Run:
    """Comparisons with a U are true of what is no number, the others, ``NE`` too, are false."""
    given = only(line, *_ORDERED, *(f"{one}U" for one in _ORDERED), "NEU", "NUM", "NAN", "AND", "OR", "XOR", "FTZ")
    first, second, left, right, *predicates = line.operands
    sides = real(left), real(right)
    (order,) = given - {"AND", "OR", "XOR", "FTZ"}
    if order in ("NUM", "NAN"):
        raise NotKnownError(order)

    def checked(side: Read) -> Read:
        def read(grid: Grid, warps: Any) -> np.ndarray:
            value = side(grid, warps)
            if np.isnan(value).any():
                raise NotKnownError("a comparison of what is no number")
            return value

        return read

    return compared(
        line, (first, second), (checked(sides[0]), checked(sides[1])), order.removesuffix("U"), predicates, False
    )


def _select(line: SassLine) -> Run:
    only(line, "FTZ")
    to, _, sources, (read,) = parts(line)
    return simple(to, [truth(read), real(sources[0]), real(sources[1])], lambda one, a, b: _bits(np.where(one, a, b)))


def _check_of_division(line: SassLine) -> Run:
    """Whether a quotient needs the slow way: known only where both exponents are far from their ends."""
    out, over, under = put_truth(line.operands[0]), real(line.operands[1]), real(line.operands[2])

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        for value in (over(grid, warps), under(grid, warps)):
            size = np.abs(np.broadcast_to(value, mask.shape)[mask])
            if not ((size > 1e-30) & (size < 1e30)).all():  # false of what is no number, too
                raise NotKnownError("a quotient of zero, or of very small or large numbers")
        out(grid, warps, mask, np.zeros(mask.shape, bool))

    return run


def _to_float(line: SassLine) -> Run:
    """From whole numbers of 32 bits."""
    given = only(line, "F32", "U32", "S32", "RP", "RM", "RZ")
    to, _, (source,), _ = parts(line)

    def what(bits: np.ndarray) -> np.ndarray:
        number = (bits.astype(np.int64) if "U32" in given else signed(bits)).astype(np.float64)
        near = number.astype(np.float32)
        for name, beyond in (("RP", np.inf), ("RM", -np.inf)):
            if name in given:
                short = near < number if name == "RP" else near > number
                near = np.where(short, np.nextafter(near, np.float32(beyond)), near)
        if "RZ" in given:
            near = np.where(np.abs(near) > np.abs(number), np.nextafter(near, np.float32(0)), near)
        return _bits(near)

    return simple(to, [word(source)], what)


def _to_whole(line: SassLine) -> Run:
    """Rounded, and within what 32 bits hold; no number gives none."""
    given = only(line, "U32", "S32", "NTZ", "FTZ", "TRUNC", "FLOOR", "CEIL")
    to, _, (source,), _ = parts(line)
    least, most = (0, 2**32 - 1) if "U32" in given else (-(2**31), 2**31 - 1)
    how = next((one for name, one in _ROUNDED.items() if name in given), np.rint)

    def what(value: np.ndarray) -> np.ndarray:
        number = np.nan_to_num(how(value.astype(np.float64)), nan=0.0, posinf=most, neginf=least)
        return np.clip(number, least, most).astype(np.int64).astype(np.uint32)

    return simple(to, [real(source)], what)


def _round(line: SassLine) -> Run:
    given = only(line, "TRUNC", "FLOOR", "CEIL", "FTZ")
    how = next((one for name, one in _ROUNDED.items() if name in given), np.rint)
    return _reals(SassLine(line.guard, "FRND", (), line.operands, line.low, line.control), how)


def _move_halves(line: SassLine) -> Run:
    """``HFMA2 R, -RZ, RZ, a, b`` moves a constant, of which both halves stand in the encoding."""
    if line.operands[1:3] != ("-RZ", "RZ") or any(map(is_register, line.operands[3:])):
        raise NotKnownError("arithmetic of halves")
    bits = np.full((1, 1), line.low >> 32, np.uint32)
    return simple(line.operands[0], [], lambda: bits)


def _shuffle(line: SassLine) -> Run:
    """Values of other lanes of a segment; of lanes that do not take part what their registers hold."""
    (how,) = only(line, "DOWN", "UP", "BFLY", "IDX")
    flag = put_truth(line.operands[0])
    to, source, distance, bounds = line.operands[1:]
    write, value, far, limit = put(to), word(source), word(distance), word(bounds)

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        lane = np.arange(32)[None, :]
        apart, bound = (far(grid, warps) & 31).astype(np.int64), limit(grid, warps).astype(np.int64)
        clamp, segments = bound & 31, bound >> 8 & 31
        last = (lane & segments) | (clamp & ~segments)
        place = {
            "DOWN": lane + apart,
            "UP": lane - apart,
            "BFLY": lane ^ apart,
            "IDX": (lane & segments) | (apart & ~segments),
        }[how]
        inside = np.broadcast_to(place >= last if how == "UP" else place <= last, mask.shape)
        place = np.where(inside, place, lane) & 31
        values = np.broadcast_to(value(grid, warps), mask.shape)
        write(grid, warps, mask, np.take_along_axis(values, np.broadcast_to(place, mask.shape), 1))
        flag(grid, warps, mask, inside)

    return run


def _halves(texts: Sequence[str]) -> list[Read]:
    """Operands of which a lane takes one half, as floats of 32 bits."""

    def half(text: str) -> Read:
        found = _HALF.search(text)
        if not found or text.startswith(("-", "|")):
            raise NotKnownError(text)
        read = word(_HALF.sub("", text))
        shift = np.uint32(16 if found[1] == "H1_H1" else 0)
        return lambda grid, warps: (read(grid, warps) >> shift).astype(np.uint16).view(np.float16).astype(np.float32)

    return [half(text) for text in texts]


def _add_halves(line: SassLine) -> Run:
    """``HADD2.F32 R, -RZ, R.H0_H0`` makes a float of a half."""
    if "F32" not in only(line, "F32") or line.operands[1] != "-RZ" or is_truth(line.operands[-1]):
        raise NotKnownError("arithmetic of halves")
    return simple(line.operands[0], _halves(line.operands[2:]), _bits)


FLOATS: dict[str, Callable[[SassLine], Run]] = {
    "FFMA": lambda line: _reals(line, lambda a, b, c: a * b + c, "RM", "RP", "RZ", "SAT"),
    "FADD": lambda line: _reals(line, lambda a, b: a + b, "RM", "RP", "RZ", "SAT"),
    "FMUL": lambda line: _reals(line, lambda a, b: a * b, "RM", "RP", "RZ", "SAT"),
    "FMNMX": _least,
    "FSETP": _compare,
    "FSEL": _select,
    "FCHK": _check_of_division,
    "MUFU": _special,
    **dict.fromkeys(("I2F", "I2FP"), _to_float),
    "F2I": _to_whole,
    "FRND": _round,
    **dict.fromkeys(("HFMA2", "HADD2"), _move_halves),
    "SHFL": _shuffle,
}
"""Opcode -> what makes it run."""
FLOATS["HADD2"] = lambda line: _add_halves(line) if "F32" in line.modifiers else _move_halves(line)
