"""ZBV: two stages a rank, placed as a V, and gradients of weights where a rank would wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.plans.schedules.registry import LOOPED
from cdmpp.platform.limits import Limits
from cdmpp.steps.action_lists import Codes, code
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import FORWARD, INPUTS, WEIGHTS


@LOOPED.register
@dataclass(frozen=True)
class ZBVZeroBubble(LoopedSchedule):
    """A rank waits only at both ends where its three passes take equally long (Qi and others, ICLR 2024, section 6)."""

    name = "zbvzerobubble"
    title = "zero bubble with two stages a rank, placed as a V"
    is_in_v = True
    divides_backward = True
    least_stages = 2
    LIMITS = {"stages_per_rank": Limits(2, 2, "stages of a rank")}

    def codes(self, ranks: int, micro_batches: int) -> list[Codes]:
        """List what PyTorch lists for ``2 p - 1`` micro-batches or more; those that are not there are left out."""
        return [self._of_rank(rank, ranks, max(2 * ranks - 1, micro_batches)) for rank in range(ranks)]

    def _of_rank(self, rank: int, ranks: int, many: int) -> Codes:
        (near, near_inputs, near_weights), (far, far_inputs, far_weights) = (
            [code(place, kind) for kind in (FORWARD, INPUTS, WEIGHTS)] for place in (0, 1)
        )
        all_of_far, behind = [far, far_inputs, far_weights], ranks - rank
        pairs = 2 * behind - 1 + rank  # forward passes of the near stage before both take turns
        order = [near] * (2 * behind - 1) + [far, near] * rank + all_of_far * behind
        order += [near, near_inputs, near_weights, *all_of_far] * (many - pairs)
        order += [near_inputs, near_weights, *all_of_far] * (pairs - ranks)
        order += [near_inputs, far_inputs] * rank + [near_inputs, near_weights] * behind
        for one in (far_weights, near_weights):
            order += [one] * (many - order.count(one))
        return np.array(order, np.uint16)
