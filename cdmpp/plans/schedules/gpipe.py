"""GPipe: all forward passes, then all backward passes."""

from __future__ import annotations

from dataclasses import dataclass

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
