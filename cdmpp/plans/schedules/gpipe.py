"""GPipe: all forward passes, then all backward passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.plans.schedules.registry import SCHEDULES
from cdmpp.steps.schedule import BACKWARD, FORWARD, Action, Schedule


@SCHEDULES.register
@dataclass(frozen=True)
class GPipe(Schedule):
    """Every stage holds the activations of all micro-batches at a time (Huang and others, NeurIPS 2019)."""

    name = "gpipe"
    title = "all forward passes, then all backward passes"

    def actions(self, rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
        """List forward passes, then backward passes, both from the first micro-batch on, as PyTorch runs them."""
        return tuple(Action(rank, kind, number) for kind in (FORWARD, BACKWARD) for number in range(micro_batches))

    def live_micro_batches(self, rank: int, ranks: int, micro_batches: int) -> int:  # noqa: ARG002
        """Return all of them."""
        return micro_batches

    def passes_s(
        self, forward_s: NDArray[np.float64], backward_s: NDArray[np.float64], micro_batches: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Add up both passes, each bound by its own slowest stage."""
        passes = [one.sum(axis=1) + (micro_batches - 1) * one.max(axis=1) for one in (forward_s, backward_s)]
        return passes[0] + passes[1]
