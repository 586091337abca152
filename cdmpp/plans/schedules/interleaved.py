"""Interleaved 1F1B: each rank has several stages, so that a pipeline fills and drains in shorter steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cdmpp.plans.schedules.registry import LOOPED
from cdmpp.steps.action_lists import Codes, code
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import BACKWARD, FORWARD, INPUTS, WEIGHTS


@LOOPED.register
@dataclass(frozen=True)
class Interleaved1F1B(LoopedSchedule):
    """Rounds of micro-batches go through the stages of a rank in turn (Narayanan and others, SC 2021).

    Equal stages wait for ``(p - 1) / (v m)`` of what they compute, of p ranks with v stages each and m micro-batches.
    """

    name = "interleaved1f1b"
    title = "one forward pass, one backward pass in turn, several stages a rank"
    least_stages = 2
    ahead: ClassVar[int] = 2
    """Forward passes that a rank begins before its first backward pass, for each rank behind it."""

    def round(self, ranks: int, micro_batches: int) -> int:
        """Return the micro-batches that go through a stage before the next stage of the rank has its turn."""
        return micro_batches // max(1, micro_batches // ranks)

    def why_not(self, ranks: int, micro_batches: int) -> str:
        """Say where rounds would not be equal."""
        rounds = max(1, micro_batches // ranks)
        if micro_batches % rounds == 0:
            return ""
        return (
            f"{self.name} has {micro_batches} micro-batches on {ranks} ranks, and PyTorch wants a multiple of the "
            f"{rounds} rounds (micro-batches // ranks): give {micro_batches - micro_batches % rounds} or "
            f"{ranks * rounds}"
        )

    def codes(self, ranks: int, micro_batches: int) -> list[Codes]:
        """List forward passes that fill the pipeline, pairs of both passes, and the backward passes that are left.

        Where backward passes are divided, weights come as many turns later as there are ranks in front.
        """
        each, count = self.round(ranks, micro_batches), self.stages_per_rank
        total, number = count * micro_batches, np.arange(count * micro_batches)
        kinds = (FORWARD, INPUTS if self.divides_backward else BACKWARD, WEIGHTS)
        forward, backward, weights = (np.array([code(place, kind) for place in range(count)]) for kind in kinds)
        places = number // each % count
        found = np.zeros((ranks, total * (2 + self.divides_backward)), np.uint16)
        for rank, own in enumerate(found):
            filling = min((count - 1) * each + self.ahead * (ranks - 1 - rank), total)
            late, waits = number - filling, rank if self.divides_backward else total
            own[number + np.maximum(late, 0) + np.maximum(late - waits, 0)] = forward[places]
            begun = np.minimum(filling + number + 1, total)
            own[number + begun + np.maximum(number - waits, 0)] = backward[count - 1 - places]
            if self.divides_backward:
                turns = number + rank + 1
                own[number + np.minimum(filling + turns, total) + np.minimum(turns, total)] = weights[
                    count - 1 - places
                ]
        return list(found)
