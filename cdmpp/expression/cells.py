"""Cells: the values of a column as positive numbers, with the row or line of the first that is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cdmpp.errors import DataError
from cdmpp.expression.columns import role_of
from cdmpp.platform.limits import shown

Floats = npt.NDArray[np.float64]
SMALLEST, LARGEST = 1e-30, 1e30
"""Times and factors outside of this are a slip; products of their powers would leave the range of numbers."""


def number_of(value: Any) -> float:
    """Return a number that is given as one or as text; ``ValueError`` for what is none, ``1_6`` among it."""
    if isinstance(value, str) and "_" in value:
        raise ValueError(value)
    return float(value)


def numbers_of(name: str, values: Any, lines: Sequence[int] | None) -> Floats:
    """Return the values of a column as positive numbers, shape ``(rows,)``.

    Args:
        name: of the column; where it is recognised as a count of whole things, whole numbers are expected.
        values: numbers or texts.
        lines: the line of a file that each is from, for messages; None: rows are counted.

    Raises:
        DataError: names the first row that has no such number.
    """
    found = np.empty(len(values))
    is_whole = role_of(name).is_whole
    for row, value in enumerate(values):
        where = f"column {name}, row {row + 1}" if lines is None else f"column {name}, line {lines[row]}"
        try:
            found[row] = number_of(value)
        except (TypeError, ValueError):
            if not str(value).strip():
                raise DataError(f"{where} has no value: leave out rows without a value") from None
            raise DataError(f"{where}: {shown(value)} is no number; a column of texts can be a group") from None
        if not math.isfinite(found[row]):
            raise DataError(f"{where}: {shown(value)}: leave out rows without a value")
        if found[row] <= 0:
            raise DataError(
                f"{where}: {found[row]:g} is not above 0; "
                "times and factors are positive, and a column of flags can be a group"
            )
        if not SMALLEST <= found[row] <= LARGEST:
            raise DataError(f"{where}: {shown(value)} is out of range: expected {SMALLEST:g} to {LARGEST:g}")
        if is_whole and not found[row].is_integer():
            raise DataError(f"{where}: {found[row]:g} is no whole number; rename the column if it counts nothing")
    return found


def has_numbers(values: Any, *, zeros: bool) -> bool:
    """Tell if a column is one of positive numbers, but for holes. ``zeros``: numbers that are not positive tell not."""
    has_number = False
    for value in values:
        try:
            number = number_of(value)
        except (TypeError, ValueError):
            continue
        if zeros and math.isfinite(number) and number <= 0:
            return False
        has_number = has_number or (math.isfinite(number) and number > 0)
    return has_number
