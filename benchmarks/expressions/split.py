"""Split: runs that are fitted, and runs that are asked for; no method sees the times of the latter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Split:
    """A table of runs, cut in two."""

    name: str
    factors: tuple[str, ...]
    columns: Mapping[str, npt.NDArray[np.generic]]
    """All columns, shape ``(runs,)``."""
    times_s: Floats
    known: npt.NDArray[np.bool_]
    """Runs that are fitted."""
    asked: npt.NDArray[np.bool_]
    """Runs that are judged."""
    groups: tuple[str, ...] = ()
    """Categorical columns."""

    def part(
        self, rows: npt.NDArray[np.bool_], names: Sequence[str] | None = None
    ) -> dict[str, npt.NDArray[np.generic]]:
        """Return columns in some rows; the factors and groups where none are named."""
        return {name: np.asarray(self.columns[name])[rows] for name in names or (*self.factors, *self.groups)}

    @property
    def matrices(self) -> tuple[Floats, Floats]:
        """Return the factors of known and of asked runs, a row a run."""
        both = [np.column_stack([np.asarray(self.columns[name], dtype=float)[rows] for name in self.factors])
                for rows in (self.known, self.asked)]  # fmt: skip
        return both[0], both[1]

    def errors(self, times_s: Floats) -> Floats:
        """Return absolute relative errors of predicted times of the asked runs, in per cent."""
        return 100 * np.abs(np.asarray(times_s) / self.times_s[self.asked] - 1)
