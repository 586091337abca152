"""Twins: plans that recompute although it changes neither time nor memory. The plan without it stands for both."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cdmpp.plans.candidates import VALID, Candidates
from cdmpp.plans.closed_form import ClosedForm

SAME = "takes as long and holds as much as without recomputing, which is listed"
"""The reason for which such a plan is left out."""
_CLOSE = 1e-9


def twins(plans: Candidates, costs: ClosedForm) -> NDArray[np.bool_]:
    """Return which plans recompute and follow a twin without, of the same time and memory by closed form."""
    settings = np.column_stack(
        [plans.combination, plans.degrees, plans.micro_batch, plans.micro_batches, plans.schedule, plans.reason]
    )
    same = (plans.reason == VALID) & (plans.recompute == 1) & ~np.isnan(costs.step_s)
    same[:1] = False
    same[1:] &= (settings[1:] == settings[:-1]).all(axis=1) & (plans.recompute[:-1] == 0)
    for values in (costs.step_s, costs.memory_bytes):
        same[1:] &= np.isclose(values[1:], values[:-1], rtol=_CLOSE, atol=0.0, equal_nan=True)
    return same
