"""Side by side: as delayed gradients, with the forward and the backward pass of a stage on two workers."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.plans.schedules.delayed import Delayed
from cdmpp.plans.schedules.registry import SCHEDULES


@SCHEDULES.register
@dataclass(frozen=True)
class SideBySide(Delayed):
    """The two workers of a stage share its memory; updated weights are copied to the one that runs forward passes.

    The last stage ends a forward pass before its backward pass begins, so that each delay is one more.
    """

    name = "side-by-side"
    title = "delayed gradients, both passes at the same time"
    passes_side_by_side = True

    def delay(self, rank: int, ranks: int) -> int:
        """Return twice the stages behind this one, and one."""
        return 2 * (ranks - 1 - rank) + 1

    def weight_versions(self, rank: int, ranks: int) -> int:  # noqa: ARG002
        """Return two: one worker reads the weights while the other updates them."""
        return 2
