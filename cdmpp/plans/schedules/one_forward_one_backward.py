"""1F1B: one forward pass, one backward pass in turn, so that few micro-batches are alive."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.plans.schedules.registry import SCHEDULES
from cdmpp.steps.schedule import BACKWARD, FORWARD, Action, Schedule


@SCHEDULES.register
@dataclass(frozen=True)
class OneForwardOneBackward(Schedule):
    """A stage holds no more micro-batches than there are stages from it to the end (PipeDream-Flush, 2021)."""

    name = "1f1b"
    title = "one forward pass, one backward pass in turn"

    def actions(self, rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
        """List a forward pass for each stage from this one on, then pairs of backward and forward pass."""
        ahead = min(ranks - rank, micro_batches)
        order = [Action(rank, FORWARD, number) for number in range(ahead)]
        for number in range(micro_batches):
            order.append(Action(rank, BACKWARD, number))
            if (following := ahead + number) < micro_batches:
                order.append(Action(rank, FORWARD, following))
        return tuple(order)

    def live_micro_batches(self, rank: int, ranks: int, micro_batches: int) -> int:
        """Return one for each stage from this one on, at most."""
        return min(ranks - rank, micro_batches)

    def warnings(self, ranks: int, micro_batches: int) -> tuple[str, ...]:
        """Say that PyTorch wants a micro-batch or more for each stage."""
        if micro_batches >= ranks:
            return ()
        return (
            f"PyTorch refuses 1f1b with {micro_batches} micro-batches on {ranks} stages: it wants one a stage or more",
        )
