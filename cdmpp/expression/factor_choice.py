"""FactorChoice: which columns of a table are factors where the user names none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.errors import DataError, some
from cdmpp.expression.cells import has_numbers, numbers_of
from cdmpp.expression.columns import LAYERED, is_time, role_of


@dataclass(frozen=True)
class FactorChoice:
    """The columns that are recognised, or all numeric ones where none is."""

    names: tuple[str, ...]
    """Columns that vary, and those whose effect is known if they do not."""
    fixed: Mapping[str, float]
    """Columns that never vary, with their value."""
    warnings: tuple[str, ...]
    """Sentences about columns that were left out."""

    @classmethod
    def of(
        cls, columns: Mapping[str, Any], time: str, groups: Sequence[str], lines: Sequence[int] | None
    ) -> FactorChoice:
        """Choose among the columns that are neither the time nor a group.

        Args:
            columns: name -> values, one a run.
            time: name of the column of times.
            groups: names of categorical columns.
            lines: the line of a file that each row is from, for messages.

        Raises:
            DataError: a column that would be a factor has a hole: it is not left out for that.
        """
        others = [name for name in columns if name != time and name not in groups]
        found = [name for name in others if role_of(name).name] or [name for name in others if not is_time(name)]
        kept, fixed, said = list[str](), dict[str, float](), list[str]()
        for name in found:
            if not has_numbers(columns[name], zeros=not role_of(name).name):
                continue
            try:
                values = np.unique(numbers_of(name, columns[name], lines))
            except DataError as error:
                raise DataError(f"{error}; or name the factors without {name}") from error
            if len(values) > 1 or has_known_effect(name):
                kept.append(name)
            elif len(values):
                fixed[name] = float(values[0])
        if fixed:
            values_ = ", ".join(f"{name} is {value:g}" for name, value in fixed.items())
            said.append(f"left out because they never vary: {values_}; runs with other values cannot be predicted")
        if left := [name for name in others if name not in kept and name not in fixed]:
            said.append(f"columns that were not taken as factors: {some(left, ', ')}")
        return cls(tuple(kept), fixed, tuple(said))


def has_known_effect(name: str) -> bool:
    """Tell if the effect of a column that never varies is known: a size of layers, or the stages of a pipeline."""
    return role_of(name).name in (*LAYERED, "pp")
