"""What instructions make of integers and predicates. Readable twin of ``native/compute.h``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cdmpp.machine_code.gpu.sass_fields import INVERTED, NEGATED, TRUE, ZERO, Kind
from cdmpp.machine_code.gpu.warp_state import LANES, LOW, WarpState, flags_of, signed

_NOTHING = np.zeros(LANES, np.uint64)
_NO, _YES = np.zeros(LANES, bool), np.ones(LANES, bool)
_WORD = np.uint64(32)


class Computed(NamedTuple):
    """(32,) each."""

    low: np.ndarray = _NOTHING
    known: np.ndarray = _YES
    high: np.ndarray = _NOTHING
    """Of the second register."""
    predicate: np.ndarray = _NO
    second: np.ndarray = _NO
    predicate_known: np.ndarray = _YES


def compute(state: WarpState, row: Any, active: np.ndarray, sure: np.ndarray) -> None:
    """Execute one instruction that neither moves data nor jumps, for the lanes ``active``."""
    kind = Kind(row.kind)
    if kind == Kind.REGISTER_TO_PREDICATES:
        value, known = state.source(row, 0)
        for j in range(TRUE):
            if row.option >> j & 1:
                bit = value >> np.uint64(row.more + j) & np.uint64(1)
                state.write_predicate(j, bit > 0, known, active, sure)
        return
    if kind == Kind.BALLOT:
        found = _ballot(state, row, active)
    elif kind in _COMPUTE:
        found = _COMPUTE[kind](state, row)
    else:
        return  # barriers and the like
    state.write(row, found.low & LOW, found.high & LOW, found.known, active, sure)
    state.write_predicate(row.to_predicate, found.predicate, found.predicate_known, active, sure)
    state.write_predicate(row.to_second, found.second, found.predicate_known, active, sure)


def _unknown(_state: WarpState, _row: Any) -> Computed:
    return Computed(known=_NO, predicate_known=_NO)


def _move(state: WarpState, row: Any) -> Computed:
    if row.to_count > 2:
        return Computed(known=_NO)
    (low, known), (high, high_known) = state.source(row, 0), state.plain(row, 0, 1)
    return Computed(low, known & high_known if row.to_count > 1 else known, high)


def _special(state: WarpState, row: Any) -> Computed:
    return Computed(state.special[row.option].astype(np.uint64))


def _add(state: WarpState, row: Any) -> Computed:
    total, known = _NOTHING, _YES
    for i in range(3):
        value, of_value = state.plain(row, i)
        flags, known = flags_of(row, i), known & of_value
        # Negated it is inverted and one more, and both count for the carry.
        total = total + ((~value & LOW) + np.uint64(flags & NEGATED) if flags & (NEGATED | INVERTED) else value)
    for carry, of_carry in (_predicate(state, row), _second(state, row))[: row.option]:
        total, known = total + carry, known & of_carry
    return Computed(total, known, predicate=total >> _WORD > 0, second=total >> _WORD > 1, predicate_known=known)


def _multiply(state: WarpState, row: Any) -> Computed:
    (a, of_a), (b, of_b), (c, of_c) = (state.source(row, i) for i in range(3))
    carry, of_carry = _predicate(state, row) if row.option else (_NO, _YES)
    return Computed(a * b + c + carry, of_a & of_b & of_c & of_carry)


def _multiply_wide(state: WarpState, row: Any) -> Computed:
    (a, of_a), (b, of_b), (c, of_c) = state.source(row, 0), state.source(row, 1), state.wide_source(row, 2)
    carry, of_carry = _predicate(state, row) if row.option else (_NO, _YES)
    product = a * b if row.more else (signed(a) * signed(b)).astype(np.uint64)
    total, known = product + c, of_a & of_b & of_c
    low, high = total + carry, total + carry >> _WORD
    if row.kind == Kind.MULTIPLY_HIGH:
        low = high
    return Computed(low, known & of_carry, high, total < product, predicate_known=known)


def _shift_add(state: WarpState, row: Any) -> Computed:
    (a, of_a), (b, of_b) = state.source(row, 0), state.source(row, 1)
    total, known = (a << np.uint64(row.option) & LOW) + b, of_a & of_b
    return Computed(total, known, predicate=total >> _WORD > 0, predicate_known=known)


def _shift_add_high(state: WarpState, row: Any) -> Computed:
    (a, of_a), (b, of_b), (c, of_c) = (state.source(row, i) for i in range(3))
    carries, extends = row.more & 1, row.more & 2
    carry, of_carry = _predicate(state, row) if carries else (_NO, _YES)
    wide = signed(a).astype(np.uint64) if extends else a | c << _WORD
    known = of_a & of_b & of_carry & (_YES if extends else of_c)
    return Computed((wide << np.uint64(row.option) >> _WORD) + b + carry, known)


def _shift(state: WarpState, row: Any) -> Computed:
    (a, of_a), (b, of_b), (c, of_c) = (state.source(row, i) for i in range(3))
    is_signed, wide, wraps = row.more & 1, row.more & 2, row.more & 4
    shift = b & np.uint64(63 if wide else 31) if wraps or wide else np.minimum(b, 32)
    both = a | c << _WORD
    if row.kind == Kind.SHIFT_LEFT:
        moved = both << shift
        moved = moved >> _WORD if row.option else moved
    elif wide or not row.option:
        moved = (both.astype(np.int64) >> shift.astype(np.int64)).astype(np.uint64) if is_signed else both >> shift
        moved = moved >> _WORD if row.option else moved
    elif is_signed:
        moved = (signed(c) >> np.minimum(shift, 31).astype(np.int64)).astype(np.uint64)
    else:
        moved = c >> shift
    return Computed(moved, of_a & of_b & of_c)


def _logic(state: WarpState, row: Any) -> Computed:
    (a, of_a), (b, of_b), (c, of_c) = (state.source(row, i) for i in range(3))
    result = _NOTHING
    for j in range(8):
        if row.option >> j & 1:
            result = result | (a if j & 4 else ~a) & (b if j & 2 else ~b) & (c if j & 1 else ~c)
    result, known = result & LOW, of_a & of_b & of_c
    return Computed(result, known, predicate=result > 0, predicate_known=known)


def _predicate_logic(state: WarpState, row: Any) -> Computed:
    index, known = np.zeros(LANES, np.int64), _YES
    values = (row.source0_value, row.source1_value, row.source2_value)
    for i, (place, weight) in enumerate(zip(values, (4, 2, 1), strict=True)):
        value, of_value = state.read_predicate(TRUE if place == ZERO else place, flags_of(row, i))
        index, known = index + weight * value, known & of_value
    if row.option in (0, 255) and row.more in (0, 255):  # whatever they are
        known = _YES
    return Computed(predicate=row.option >> index & 1 > 0, second=row.more >> index & 1 > 0, predicate_known=known)


def _compare(state: WarpState, row: Any) -> Computed:
    (a, of_a), (b, of_b) = state.source(row, 0), state.source(row, 1)
    (other, of_other), (low, of_low) = _predicate(state, row), _second(state, row)
    left, right = (a, b) if row.more & 1 else (signed(a), signed(b))
    less, same = left < right, left == right
    result = (less, same, less | same, ~(less | same), ~same, ~less, _NO, _YES)[row.option]
    known = of_a & of_b & of_other
    if row.more & 8:  # of upper words: where they are equal the lower ones decide
        result, known = np.where(same, low, result), known & of_low
    if row.more & 2:
        return Computed(predicate=result | other, second=~result | other, predicate_known=known)
    if row.more & 4:
        return Computed(predicate=result ^ other, second=~result ^ other, predicate_known=known)
    return Computed(predicate=result & other, second=~result & other, predicate_known=known)


def _select(state: WarpState, row: Any) -> Computed:
    (a, of_a), (b, of_b), (first, known) = state.source(row, 0), state.source(row, 1), _predicate(state, row)
    return Computed(np.where(first, a, b), known & np.where(first, of_a, of_b))


def _least(state: WarpState, row: Any) -> Computed:
    (a, of_a), (b, of_b), (least, known) = state.source(row, 0), state.source(row, 1), _predicate(state, row)
    less = a < b if row.more else signed(a) < signed(b)
    return Computed(np.where(less == least, a, b), of_a & of_b & known)


def _absolute(state: WarpState, row: Any) -> Computed:
    value, known = state.source(row, 0)
    return Computed(np.abs(signed(value)).astype(np.uint64), known)


def _permute(state: WarpState, row: Any) -> Computed:
    (a, of_a), (selector, of_selector), (c, of_c) = (state.source(row, i) for i in range(3))
    both, result = a | c << _WORD, _NOTHING
    for j in range(4):
        chosen = selector >> np.uint64(4 * j) & np.uint64(15)
        byte = both >> np.uint64(8) * (chosen & np.uint64(7)) & np.uint64(255)
        sign = np.where(byte & np.uint64(128), 255, 0).astype(np.uint64)
        result = result | np.where(chosen & np.uint64(8), sign, byte).astype(np.uint64) << np.uint64(8 * j)
    return Computed(result, of_a & of_selector & of_c)


def _dot(state: WarpState, row: Any) -> Computed:
    (a, of_a), (b, of_b), (c, of_c) = (state.source(row, i) for i in range(3))
    part, byte = b >> np.uint64(16 * row.option), np.uint64(0xFF)
    total = c + (a & np.uint64(0xFFFF)) * (part & byte) + (a >> np.uint64(16)) * (part >> np.uint64(8) & byte)
    return Computed(total, of_a & of_b & of_c)


def _sign_extend(state: WarpState, row: Any) -> Computed:
    (a, of_a), (b, of_b) = state.source(row, 0), state.source(row, 1)
    bits, one = b & np.uint64(31), np.uint64(1)
    mask = (one << bits) - one
    negative = (bits > 0) & (a >> np.maximum(bits, one) - one & one > 0) & (not row.more)
    return Computed(a & mask | np.where(negative, ~mask, np.uint64(0)), of_a & of_b)


def _bit_mask(state: WarpState, row: Any) -> Computed:
    (a, of_a), (b, of_b) = state.source(row, 0), state.source(row, 1)
    ones = (np.uint64(1) << np.minimum(b, _WORD)) - np.uint64(1)
    return Computed(ones << (a & np.uint64(31)), of_a & of_b)


def _count_bits(state: WarpState, row: Any) -> Computed:
    value, known = state.source(row, 0)
    return Computed(np.bitwise_count(value).astype(np.uint64), known)


def _predicates_to_register(state: WarpState, row: Any) -> Computed:
    kept, known = state.source(row, 0)
    bits, mask, place = _NOTHING, np.uint64(row.option), np.uint64(row.more)
    for j in range(TRUE):
        if row.option >> j & 1:
            value, of_value = state.read_predicate(j, 0)
            bits, known = bits | value.astype(np.uint64) << np.uint64(j), known & of_value
    return Computed(kept & ~(mask << place) | (bits & mask) << place, known)


def _ballot(state: WarpState, row: Any, active: np.ndarray) -> Computed:
    asked, known = _predicate(state, row)
    votes, all_known = active & asked, np.full(LANES, known[active].all())
    mask = np.full(LANES, int((votes.astype(np.uint64) << np.arange(LANES, dtype=np.uint64)).sum()), np.uint64)
    return Computed(mask, all_known, predicate=np.full(LANES, votes.any()), predicate_known=all_known)


def _predicate(state: WarpState, row: Any) -> tuple[np.ndarray, np.ndarray]:
    return state.read_predicate(row.predicate, row.predicate_not)


def _second(state: WarpState, row: Any) -> tuple[np.ndarray, np.ndarray]:
    return state.read_predicate(row.second, row.second_not)


_COMPUTE: dict[Kind, Callable[[WarpState, Any], Computed]] = {
    Kind.UNKNOWN: _unknown,
    Kind.MOVE: _move,
    Kind.SPECIAL: _special,
    Kind.ADD: _add,
    Kind.MULTIPLY: _multiply,
    Kind.MULTIPLY_WIDE: _multiply_wide,
    Kind.MULTIPLY_HIGH: _multiply_wide,
    Kind.SHIFT_ADD: _shift_add,
    Kind.SHIFT_ADD_HIGH: _shift_add_high,
    Kind.SHIFT_LEFT: _shift,
    Kind.SHIFT_RIGHT: _shift,
    Kind.LOGIC: _logic,
    Kind.PREDICATE_LOGIC: _predicate_logic,
    Kind.COMPARE: _compare,
    Kind.SELECT: _select,
    Kind.LEAST: _least,
    Kind.ABSOLUTE: _absolute,
    Kind.PERMUTE: _permute,
    Kind.DOT: _dot,
    Kind.SIGN_EXTEND: _sign_extend,
    Kind.BIT_MASK: _bit_mask,
    Kind.COUNT_BITS: _count_bits,
    Kind.PREDICATES_TO_REGISTER: _predicates_to_register,
}
