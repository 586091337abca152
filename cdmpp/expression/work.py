"""Work: fits of exponents, counted in nominal seconds, so that a budget gives the same answer on every machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdmpp.expression.design import Design
from cdmpp.expression.exponents import ExponentFit, polish
from cdmpp.expression.form import Form

Rows = npt.NDArray[np.intp]
_FIT_S, _NUMBER_S, _GROUP_S = 4e-3, 2.5e-7, 4e-4
"""Nominal seconds of a fit: whatever it is, for each number in its columns, and for each group."""


@dataclass
class Work:
    """Fits so far, and how many there may be."""

    budget_s: float = np.inf
    """Nominal seconds."""
    spent_s: float = 0.0

    @property
    def is_done(self) -> bool:
        """Return True where the budget is spent."""
        return self.spent_s >= self.budget_s

    def polish(self, design: Design, form: Form, rows: Rows, strength: float, steps: int) -> ExponentFit:
        """Fit exponents and constants, and count it; arguments as of ``exponents.polish``."""
        numbers = len(design.table) * len(form.terms) * (len(form.free) + 5)
        self.spent_s += _FIT_S + _NUMBER_S * numbers + _GROUP_S * len(design.table.groups)
        return polish(design, form, rows, strength, steps)
