"""Limits: which quantity binds a plan, by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cdmpp.plans.candidates import BATCH, FACTORS, LIMIT, VALID, Candidates
from cdmpp.plans.closed_form import ClosedForm
from cdmpp.plans.overlap import Floats
from cdmpp.plans.stage_costs import HALOS

COMPUTE, BUBBLE, UPDATE, HALO, START_UP, BANDWIDTH, HOST, INPUTS = TERMS = (
    "compute", "bubble", "weight update", "halo", "start-up", "bandwidth", "host", "input pipeline",
)  # fmt: skip
"""Parts of a step, which sum up to it."""
MEMORY = "memory"
"""Another quantity that may bind, next to the terms."""
_REASONS: Mapping[int, str] = {BATCH: "samples per rank", LIMIT: "smallest layer", FACTORS: "number of devices"}
"""Reason why a plan cannot be -> the quantity that binds."""


def terms(costs: ClosedForm) -> dict[str, Floats]:
    """Split the step of each plan into what its seconds go into, by closed form."""
    halo_s = costs.communication_s[HALOS]
    rest_s = costs.exposed_s - halo_s
    start_up_s = rest_s * costs.start_up_share
    waits_s = costs.step_s - costs.ranks_s
    values = (
        costs.compute_s, costs.bubble_s, costs.update_s, halo_s, start_up_s, rest_s - start_up_s, costs.once_s, waits_s,
    )  # fmt: skip
    return dict(zip(TERMS, values, strict=True))


def binding(parts: Mapping[str, float]) -> str:
    """Return the input pipeline if ranks wait for it, else the term that most goes into; the first of equal ones."""
    return INPUTS if parts[INPUTS] > 0 else max(parts, key=lambda name: parts[name])


def refusal(plans: Candidates, costs: ClosedForm, rows: NDArray[np.int64]) -> str:
    """Return the quantity that refuses all of the plans ``rows``, none of which fits."""
    if not np.isnan(costs.step_s[rows]).all():
        return MEMORY
    reasons = plans.reason[rows]
    return _REASONS[LIMIT if (reasons == VALID).any() else int(np.bincount(reasons).argmax())]
