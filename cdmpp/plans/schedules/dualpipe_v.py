"""DualPipeV: two stages a rank, placed as a V, with a forward and a backward pass in each turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.plans.schedules.registry import LOOPED
from cdmpp.platform.limits import Limits
from cdmpp.steps.action_lists import JOINED, Codes, code
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import BACKWARD, FORWARD, INPUTS, WEIGHTS


@LOOPED.register
@dataclass(frozen=True)
class DualPipeV(LoopedSchedule):
    """The variant of DeepSeek-V3's DualPipe that holds parameters once (Sea AI Lab and DeepSeek, 2025).

    As PyTorch runs it where nobody registers another function, the two passes of a turn come one after the other, and
    what they send leaves when both have ended.
    """

    name = "dualpipev"
    title = "forward and backward passes in pairs, two stages a rank, placed as a V"
    is_in_v = True
    divides_backward = True
    least_stages = 2
    LIMITS = {"stages_per_rank": Limits(2, 2, "stages of a rank")}

    def why_not(self, ranks: int, micro_batches: int) -> str:
        """Say where micro-batches are fewer than stages."""
        if micro_batches >= 2 * ranks:
            return ""
        return (
            f"{self.name} has {micro_batches} micro-batches on {ranks} ranks of two stages each, and PyTorch wants as "
            f"many micro-batches as stages: give {2 * ranks} or more"
        )

    def codes(self, ranks: int, micro_batches: int) -> list[Codes]:
        """List the eight parts of the schedule, as DeepSeek's code numbers them."""
        return [self._of_rank(rank, ranks, micro_batches) for rank in range(ranks)]

    def _of_rank(self, rank: int, ranks: int, micro_batches: int) -> Codes:
        (near, near_backward), (far, far_backward) = (
            [code(place, kind) for kind in (FORWARD, BACKWARD)] for place in (0, 1)
        )
        inputs, weights = ([code(place, kind) for place in (0, 1)] for kind in (INPUTS, WEIGHTS))
        behind, both = ranks - 1 - rank, [near | JOINED, far_backward, far | JOINED, near_backward]
        order = [near] * (2 * behind) + [near, far] * (rank + 1) + [inputs[1], weights[1], far] * behind
        many = micro_batches - 2 * ranks + rank + 1
        if many > 0 and rank == ranks - 1:  # not as one turn, so that the pipeline fills sooner
            order += [near, *both[1:]]
            many -= 1
        order += both * many + [far_backward, *both[2:]] * behind
        whole, waiting = 2 * ((rank + 1) // 2) + (rank % 2 == 0), list[int]()
        for number in range(2 * (rank + 1)):
            place = 1 - number % 2
            if number < whole:
                order.append((near_backward, far_backward)[place])
            else:
                order.append(inputs[place])
                waiting.append(weights[place])
        for number in range(behind):
            order += [waiting[number], inputs[0]]
            waiting.append(weights[0])
        return np.array(order + waiting[behind:], np.uint16)
