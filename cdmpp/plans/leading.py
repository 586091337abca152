"""Leading: which plans may still be the fastest of their combination, so that slower ones need not be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from cdmpp.plans.candidates import Candidates
from cdmpp.plans.overlap import Floats
from cdmpp.plans.stage_costs import StageCosts
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.strategy import IntArray

TERMS = ("compute_s", "bubble_s", "update_s", "exposed_s", "once_s")
"""Parts that sum up to the step of a plan by closed form."""
_ROUNDED = 1 - 1e-9
"""A bound is lowered by so much, since it is summed up in another order than what it bounds."""


@dataclass(frozen=True)
class Leading:
    """The fastest plan of each combination among those judged so far, where memory allows it.

    A plan is left out where its passes alone take longer: replicas, update and memory come on top, and bubbles of
    schedules that are lists. So the fastest of each combination is judged as it would be next to all others.
    """

    memory_limit_bytes: float | None
    inputs_s: float = 0.0
    """No step is faster."""
    best_s: dict[int, float] = field(default_factory=dict)
    """Place of a combination -> seconds of the fastest step that fits."""

    def hopeful(self, rows: IntArray, plans: Candidates, costs: StageCosts) -> IntArray:
        """Return those of ``rows``, plans of one combination, whose lower bound is not above the best step."""
        best_s = self.best_s.get(int(plans.combination[rows[0]])) if len(rows) else None
        return rows if best_s is None else rows[self.bound_s(rows, plans, costs) * _ROUNDED <= best_s]

    def bound_s(self, rows: IntArray, plans: Candidates, costs: StageCosts) -> Floats:
        """Return seconds below which no step of these plans can be: their passes on the stages of ``costs``."""
        which = np.searchsorted([one.batch for one in costs.works], plans.micro_batch[rows])
        forward_s, backward_s = costs.pass_s["forward"][which], costs.pass_s["backward"][which]
        many, found = plans.micro_batches[rows], np.zeros(len(rows))
        for number in np.unique(plans.schedule[rows]).tolist():
            own, schedule = plans.schedule[rows] == number, plans.schedules[number]
            if isinstance(schedule, LoopedSchedule):
                ranks_s = schedule.of_ranks((forward_s + backward_s)[own], costs.ranks)
                found[own] = many[own] * ranks_s.max(axis=1)
            else:
                found[own] = schedule.passes_s(forward_s[own], backward_s[own], many[own])
        return found

    def note(self, rows: IntArray, plans: Candidates, terms: Mapping[str, Floats]) -> None:
        """Take note of plans that were judged, by ``terms`` of ``step_terms``."""
        step_s = np.maximum(sum((terms[name] for name in TERMS), np.zeros(len(rows))), self.inputs_s)
        fits = ~np.isnan(step_s)
        if self.memory_limit_bytes is not None:
            fits &= ~(terms["memory_bytes"] > self.memory_limit_bytes)
        for number in np.unique(plans.combination[rows[fits]]).tolist():
            own = step_s[fits & (plans.combination[rows] == number)].min()
            self.best_s[number] = min(float(own), self.best_s.get(number, np.inf))
