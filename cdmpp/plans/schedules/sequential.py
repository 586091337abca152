"""Sequential: one micro-batch at a time, so that all stages but one stand still."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.plans.schedules.registry import SCHEDULES
from cdmpp.steps.schedule import BACKWARD, FORWARD, Action, Schedule


@SCHEDULES.register
@dataclass(frozen=True)
class Sequential(Schedule):
    """A stage waits for the backward pass of a micro-batch before it begins the next: all three locks hold."""

    name = "sequential"
    title = "one micro-batch at a time"
    is_in_torch = False

    def actions(self, rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:  # noqa: ARG002
        """List pairs of a forward and a backward pass."""
        return tuple(Action(rank, kind, number) for number in range(micro_batches) for kind in (FORWARD, BACKWARD))

    def passes_s(
        self, forward_s: NDArray[np.float64], backward_s: NDArray[np.float64], micro_batches: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Add up all passes."""
        return micro_batches * (forward_s + backward_s).sum(axis=1)
