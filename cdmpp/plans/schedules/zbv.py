"""ZBV: two stages a rank, placed as a V, and gradients of weights where a rank would wait."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.plans.schedules.registry import LOOPED
from cdmpp.platform.limits import Limits
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import FORWARD, INPUTS, WEIGHTS, Action


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

    def turns(self, rank: int, ranks: int, micro_batches: int) -> tuple[tuple[Action, ...], ...]:
        """List what PyTorch lists for ``2 p - 1`` micro-batches or more, without those that are not there."""
        many, near, far = max(2 * ranks - 1, micro_batches), rank, 2 * ranks - 1 - rank
        order, counts = list[Action](), dict[tuple[int, str], int]()

        def add(stage: int, *kinds: str) -> None:
            for kind in kinds:
                number = counts.get((stage, kind), 0)
                counts[stage, kind] = number + 1
                order.append(Action(stage, kind, number))

        for _ in range(2 * (ranks - rank) - 1):
            add(near, FORWARD)
        for _ in range(rank):
            add(far, FORWARD)
            add(near, FORWARD)
        for _ in range(ranks - rank):
            add(far, FORWARD, INPUTS, WEIGHTS)
        while counts[far, FORWARD] < counts[near, FORWARD] or counts[near, FORWARD] < many:
            if counts[near, FORWARD] < many:
                add(near, FORWARD)
            add(near, INPUTS, WEIGHTS)
            add(far, FORWARD, INPUTS, WEIGHTS)
        for _ in range(rank):
            add(near, INPUTS)
            add(far, INPUTS)
        for _ in range(ranks - rank):
            add(near, INPUTS, WEIGHTS)
        for stage in (far, near):
            for _ in range(counts.get((stage, WEIGHTS), 0), many):
                add(stage, WEIGHTS)
        return tuple((one,) for one in order if one.micro_batch < micro_batches)
