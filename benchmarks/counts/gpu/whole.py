"""Instructions that compute with whole numbers and move them, for all lanes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.counts.gpu.grid import Grid, NotKnownError, Read, put, put_truth, put_wide, truth, wide, word
from benchmarks.counts.gpu.operations import LOW, Run, only, parts, plain, signed, simple
from cdmpp.machine_code.gpu.sass import SassLine

_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "LT": np.less,
    "EQ": np.equal,
    "LE": np.less_equal,
    "GT": np.greater,
    "NE": np.not_equal,
    "GE": np.greater_equal,
}


def _first(line: SassLine) -> Run:
    only(line, "MOV", "U32", "FILL")
    return simple(line.operands[0], [word(line.operands[1])], lambda x: x)


def _special(line: SassLine) -> Run:
    to, name = line.operands
    pair = line.opcode == "CS2R" and "32" not in only(line, "32")
    writes = [put(to), put(to, 1)] if pair else [put(to)]

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        if name not in grid.special or (pair and name != "SRZ"):
            raise NotKnownError(name)
        for write in writes:
            write(grid, warps, mask, grid.special[name][warps])

    return run


def _constant(line: SassLine) -> Run:
    count = 1 + ("64" in only(line, "64"))
    writes = [(put(line.operands[0], k), word(line.operands[1], k)) for k in range(count)]

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        for write, read in writes:
            write(grid, warps, mask, read(grid, warps))

    return run


def _add(line: SassLine) -> Run:
    """Three terms and up to two carries; a negated term is inverted and one more, which may carry as well."""
    carries = "X" in only(line, "X")
    to, written, sources, read = parts(line)
    terms = [(word(text.lstrip("-~") if "0x" not in text else text, signs=False), _turn(text)) for text in sources]
    more = [truth(text) for text in read] if carries else []
    write, outs = put(to), [put_truth(text) for text in written]

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        total = np.zeros((1, 1), np.uint64)
        for term, (inverted, one) in terms:
            bits = term(grid, warps)
            total = total + (~bits if inverted else bits) + np.uint64(one)
        for carry in more:
            total = total + carry(grid, warps).astype(np.uint64)
        write(grid, warps, mask, (total & LOW).astype(np.uint32))
        for i, out in enumerate(outs):
            out(grid, warps, mask, total >> np.uint64(32) > i)

    return run


def _turn(text: str) -> tuple[bool, int]:
    if "0x" in text and "[" not in text:
        return False, 0
    return text[0] in "-~", int(text.startswith("-"))


def _multiply(line: SassLine) -> Run:
    given = only(line, "X", "U32", "WIDE", "HI", "MOV", "IADD", "SHL")
    to, written, (a, b, c), read = parts(line)
    one, two = word(a), word(b)
    carry = truth(read[0]) if "X" in given else None
    if not {"WIDE", "HI"} & given:
        if written:
            raise NotKnownError("a carry")
        added = [word(c), *([carry] if carry else [])]
        return simple(to, [one, two, *added], lambda x, y, *z: x * y + sum(part.astype(np.uint32) for part in z))
    three, high, unsigned = wide(c), "HI" in given, "U32" in given
    write, outs = put(to) if high else put_wide(to), [put_truth(text) for text in written]

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        x, y, z = one(grid, warps), two(grid, warps), three(grid, warps)
        product = x.astype(np.uint64) * y if unsigned else (signed(x) * signed(y)).view(np.uint64)
        total = product + z
        for out in outs:
            out(grid, warps, mask, total < product)
        if carry:
            total = total + carry(grid, warps)
        write(grid, warps, mask, (total >> np.uint64(32)).astype(np.uint32) if high else total)

    return run


def _shift_add(line: SassLine) -> Run:
    given = only(line, "HI", "X", "SX32")
    to, written, sources, read = parts(line)
    shift = np.uint64(int(sources.pop(), 16))
    a, b = word(sources[0]), word(sources[1])
    upper = word(sources[2]) if len(sources) > 2 else None
    carry = truth(read[0]) if "X" in given else None
    write, outs = put(to), [put_truth(text) for text in written]
    if "X" in given and "HI" not in given:
        raise NotKnownError("a carry")

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        x, y = a(grid, warps), b(grid, warps)
        if "HI" not in given:
            total = (x.astype(np.uint64) << shift & LOW) + y
        else:
            both = signed(x).view(np.uint64) if "SX32" in given else x.astype(np.uint64)
            if upper is not None and "SX32" not in given:
                both = both | upper(grid, warps).astype(np.uint64) << np.uint64(32)
            total = (both << shift >> np.uint64(32)) + y
            total = total + carry(grid, warps) if carry else total
        write(grid, warps, mask, (total & LOW).astype(np.uint32))
        for i, out in enumerate(outs):
            out(grid, warps, mask, total >> np.uint64(32) > i)

    return run


def _compare(line: SassLine) -> Run:
    given = only(line, *_ORDERS, "U32", "AND", "OR", "XOR", "EX")
    first, second, left, right, *predicates = line.operands
    (order,) = given & set(_ORDERS)
    return compared(line, (first, second), (word(left), word(right)), order, predicates, "U32" not in given)


def compared(
    line: SassLine,
    to: tuple[str, str],
    sides: tuple[Read, Read],
    order: str,
    predicates: Sequence[str],
    is_signed: bool,
) -> Run:
    """A comparison, and its opposite, each joined with a predicate."""
    join = np.logical_or if "OR" in line.modifiers else np.not_equal if "XOR" in line.modifiers else np.logical_and
    other = truth(predicates[0])
    lower = truth(predicates[1]) if "EX" in line.modifiers else None
    yes, no = put_truth(to[0]), put_truth(to[1])

    def run(grid: Grid, warps: Any, mask: np.ndarray) -> None:
        left, right = (side(grid, warps) for side in sides)
        if is_signed:
            left, right = signed(left), signed(right)
        found = _ORDERS[order](left, right)
        if lower is not None:
            found = np.where(left == right, lower(grid, warps), found)
        with_it = other(grid, warps)
        positive, negative = join(found, with_it), join(~found, with_it)
        yes(grid, warps, mask, positive)
        no(grid, warps, mask, negative)

    return run


def _select(line: SassLine) -> Run:
    to, _, sources, (read,) = parts(line)
    return simple(to, [truth(read), word(sources[0]), word(sources[1])], np.where)


def _least(line: SassLine) -> Run:
    unsigned = "U32" in only(line, "U32", "S32")
    to, _, sources, (read,) = parts(line)

    def what(least: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        less = a < b if unsigned else signed(a) < signed(b)
        return np.where(less == least, a, b)

    return simple(to, [truth(read), word(sources[0]), word(sources[1])], what)


WHOLE: dict[str, Callable[[SassLine], Run]] = {
    **dict.fromkeys(("MOV", "R2UR"), _first),
    **dict.fromkeys(("S2R", "S2UR", "CS2R"), _special),
    **dict.fromkeys(("LDC", "LDCU"), _constant),
    "IADD3": _add,
    "IMAD": _multiply,
    "LEA": _shift_add,
    "ISETP": _compare,
    "SEL": _select,
    **dict.fromkeys(("IMNMX", "VIMNMX"), _least),
    "IABS": plain(lambda given, x: np.abs(signed(x)).astype(np.uint32)),
    "VIADD": plain(lambda given, x, y: x + y),
}
"""Opcode, without the U of uniform ones -> what makes it run."""
