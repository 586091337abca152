"""Takeovers: where, along one column, another term becomes the largest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.expression.fitted_expression import FittedExpression
from cdmpp.expression.points import Points

_BEYOND = 16.0
"""Columns are followed to this many times their largest measured value, or down to that part of the smallest."""
_STEPS = 400


@dataclass(frozen=True)
class Takeover:
    """From ``value`` of a column on, one term is larger than the one that was the largest before."""

    column: str
    value: float
    before: int
    """Place of the term that is the largest below the value."""
    after: int
    """Place of the term that is the largest above it."""
    is_outside: bool
    """The value lies beyond the measured range."""


def takeovers(fitted: FittedExpression, point: Mapping[str, Any]) -> tuple[Takeover, ...]:
    """Follow each column from a point, all others as they are there, and list where the largest term changes."""
    asked, found = fitted.points([point]), list[Takeover]()
    for name, (low, high) in fitted.ranges.items():
        first = max(low / _BEYOND, 1.0) if name in fitted.scaling else low / _BEYOND
        values = np.geomspace(min(first, low), high * _BEYOND, _STEPS)
        columns = {one: np.repeat(column, _STEPS) for one, column in asked.columns.items()} | {name: values}
        largest = fitted.parts(Points(columns, np.repeat(asked.codes, _STEPS))).argmax(axis=1)
        for place in np.flatnonzero(np.diff(largest)):
            there = {one: column[:1] for one, column in asked.columns.items()} | {name: values[place : place + 1]}
            if fitted.table.rules.broken_by(there, is_whole=False):
                continue
            value = float(np.sqrt(values[place] * values[place + 1]))
            before, after = int(largest[place]), int(largest[place + 1])
            found.append(Takeover(name, value, before, after, not low <= value <= high))
    return tuple(found)
