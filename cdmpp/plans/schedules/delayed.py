"""Delayed gradients: each stage runs a forward pass and the backward pass of an earlier micro-batch in turn."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.plans.schedules.registry import SCHEDULES
from cdmpp.steps.schedule import BACKWARD, FORWARD, Action, Schedule


@SCHEDULES.register
@dataclass(frozen=True)
class Delayed(Schedule):
    """Stage k of K updates with the gradient of the micro-batch 2 (K - k) before the one that it began last.

    Each message has the time of a whole turn. The backward pass takes the weights as they are: one version is held.
    The form is ours, after the aims of Akintoye and others (FGCS 2023), whose formulas we have not read; see Huo and
    others, "Decoupled parallel backpropagation", ICML 2018.
    """

    name = "delayed"
    title = "delayed gradients"
    is_in_torch = False
    flushes = False
    updates_each = True

    def delay(self, rank: int, ranks: int) -> int:
        """Return the micro-batches that a stage begins after one, before its gradient is there."""
        return 2 * (ranks - 1 - rank)

    def actions(self, rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
        """List as many forward passes as the delay says, then pairs of both passes, then what is left."""
        delay, order = self.delay(rank, ranks), list[Action]()
        for number in range(micro_batches + delay):
            if number < micro_batches:
                order.append(Action(rank, FORWARD, number))
            if number >= delay:
                order.append(Action(rank, BACKWARD, number - delay))
        return tuple(order)

    def live_micro_batches(self, rank: int, ranks: int, micro_batches: int) -> int:
        """Return the delay and one."""
        return min(self.delay(rank, ranks) + 1, micro_batches)

    def staleness(self, rank: int, ranks: int) -> int:
        """Return the delay."""
        return self.delay(rank, ranks)
