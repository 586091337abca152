"""UsualWork: ops and exchanges that at least half of the steps have, matched by name and order on their stream."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from cdmpp.trace.rank_trace import HOST, StepTrace

Column = list[int | None]
"""For each step the place of one op or exchange in it; None where the step has none."""

_MOST_CELLS = 2 * 10**8
"""Pairs of ops of two sequences that are compared; longer ones that differ so much share only their ends."""


@dataclass(frozen=True)
class UsualWork:
    """These ops of one rank are in at least half of its steps, in the order of their launches."""

    steps: Sequence[StepTrace]
    columns: Sequence[Sequence[int | None]]

    @cached_property
    def places(self) -> Sequence[Mapping[int, int]]:
        """Map, for each step, the place of an op in the step to its column."""
        found: list[dict[int, int]] = [{} for _ in self.steps]
        for column, places in enumerate(self.columns):
            for step, place in enumerate(places):
                if place is not None:
                    found[step][place] = column
        return found

    @cached_property
    def _until(self) -> list[list[int]]:
        pairs = zip(self.steps, self.places, strict=True)
        return [list(accumulate((places.get(n, -1) for n in range(len(s.ops))), max)) for s, places in pairs]

    @cached_property
    def _since(self) -> list[list[int]]:
        end, pairs = len(self.columns), zip(self.steps, self.places, strict=True)
        return [
            list(accumulate((places.get(n, end) for n in reversed(range(len(s.ops)))), min))[::-1]
            for s, places in pairs
        ]

    def until(self, step: int, place: int) -> int:
        """Return the last column among the ops of a step up to a place; -1: none."""
        return self._until[step][place] if place >= 0 else -1

    def since(self, step: int, place: int) -> int:
        """Return the first column among the ops of a step from a place on; the number of columns: none."""
        return self._since[step][place] if place < len(self._since[step]) else len(self.columns)

    @cached_property
    def left_out(self) -> list[list[int]]:
        """List, for each step, the places of ops that are no launches and in no column."""
        return [
            [n for n, op in enumerate(step.ops) if op.stream != HOST and n not in places]
            for step, places in zip(self.steps, self.places, strict=True)
        ]

    @cached_property
    def lacking(self) -> list[list[int]]:
        """List, for each step, the columns that it lacks, those of launches left out."""
        work = [n for n, column in enumerate(self.columns) if not self._is_launch(column)]
        return [[n for n in work if self.columns[n][step] is None] for step, _ in enumerate(self.steps)]

    def _is_launch(self, column: Sequence[int | None]) -> bool:
        step = next(number for number, place in enumerate(column) if place is not None)
        return self.steps[step].ops[column[step] or 0].stream == HOST


def usual_work(steps: Sequence[StepTrace], reference: int) -> UsualWork:
    """Match the ops of one rank; what is in exactly half of the steps counts where the reference step has it."""
    streams: dict[str, list[list[int]]] = defaultdict(lambda: [[] for _ in steps])
    for number, step in enumerate(steps):
        for place, op in enumerate(step.ops):
            if op.stream != HOST:
                streams[op.stream.partition(".")[0]][number].append(place)
    found: list[tuple[int, Column]] = []
    for places in streams.values():
        anchor = -1
        names = [[step.ops[place].name for place in mine] for step, mine in zip(steps, places, strict=True)]
        for column in _merged(names, reference):
            moved = [None if at is None else mine[at] for at, mine in zip(column, places, strict=True)]
            anchor = anchor if moved[reference] is None else moved[reference] or 0
            if _is_usual(moved, reference):
                found.append((anchor, moved))
    columns = list[Column]()
    for _, column in sorted(found, key=lambda pair: pair[0]):
        launches = [_launch(step, place) for step, place in zip(steps, column, strict=True)]
        if 2 * sum(place is not None for place in launches) >= sum(place is not None for place in column):
            columns.append(launches)
        columns.append(column)
    return UsualWork(steps, columns)


def usual_in_order(keys: Sequence[Sequence[Hashable]], reference: int) -> list[Column]:
    """Match the n-th of each key, those of the reference step first: two that are launched at once change places."""
    found: dict[Hashable, Column] = {}
    for step in [reference, *(n for n in range(len(keys)) if n != reference)]:
        seen: Counter = Counter()
        for place, key in enumerate(keys[step]):
            found.setdefault((key, seen[key]), [None] * len(keys))[step] = place
            seen[key] += 1
    return [column for column in found.values() if _is_usual(column, reference)]


def _is_usual(column: Column, reference: int) -> bool:
    twice = 2 * sum(place is not None for place in column)
    return twice > len(column) or (twice == len(column) and column[reference] is not None)


def _launch(step: StepTrace, place: int | None) -> int | None:
    """The launch of an op stands just before it."""
    return place - 1 if place and step.ops[place - 1].stream == HOST else None


def _merged(sequences: Sequence[Sequence[str]], reference: int) -> list[Column]:
    """Merge one sequence after another into the reference: each by its longest common subsequence."""
    keys = list(sequences[reference])
    columns: list[Column] = [[None] * len(sequences) for _ in keys]
    for number, sequence in enumerate(sequences):
        merged_keys, merged, i, j = list[str](), list[Column](), 0, 0
        for a, b in [*_common(keys, sequence), (len(keys), len(sequence))]:
            merged_keys += [*keys[i:a], *sequence[j:b]]
            merged += columns[i:a]
            for place in range(j, b):
                merged.append([None] * len(sequences))
                merged[-1][number] = place
            if a < len(keys):
                merged_keys.append(keys[a])
                merged.append(columns[a])
                merged[-1][number] = b
            i, j = a + 1, b + 1
        keys, columns = merged_keys, merged
    return columns


def _common(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int]]:
    """Places of the longest common subsequence in both, the ends that are equal taken off first."""
    short = min(len(one), len(other))
    head = next((n for n in range(short) if one[n] != other[n]), short)
    rest = short - head
    tail = next((n for n in range(rest) if one[-1 - n] != other[-1 - n]), rest)
    middle = _longest(one[head : len(one) - tail], other[head : len(other) - tail])
    return [
        *((n, n) for n in range(head)),
        *((head + a, head + b) for a, b in middle),
        *((len(one) - n, len(other) - n) for n in range(tail, 0, -1)),
    ]


def _longest(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int]]:
    """By rows of the usual table of lengths: only where a row rises is kept, a bit a cell."""
    if not one or not other or len(one) * len(other) > _MOST_CELLS:
        return []
    number: dict[str, int] = {}
    codes = np.array([number.setdefault(name, len(number)) for name in other])
    row, rises = np.zeros(len(other) + 1, np.int32), []
    for name in one:
        row[1:] = np.maximum.accumulate(np.maximum(row[1:], row[:-1] + (codes == number.get(name, -1))))
        rises.append(np.packbits(row[1:] > row[:-1]))
    found, a, b = list[tuple[int, int]](), len(one), len(other)

    def is_rise(row: int, column: int) -> bool:
        return bool(rises[row][column >> 3] >> (7 - (column & 7)) & 1)

    while a and b:
        if not is_rise(a - 1, b - 1):
            b -= 1
            continue
        a -= 1
        if not a or not is_rise(a - 1, b - 1):
            b -= 1
            found.append((a, b))
    return found[::-1]
