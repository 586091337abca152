"""Interleaved 1F1B: each rank has several stages, so that a pipeline fills and drains in shorter steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cdmpp.plans.schedules.registry import LOOPED
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action


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

    def turns(self, rank: int, ranks: int, micro_batches: int) -> tuple[tuple[Action, ...], ...]:
        """List forward passes that fill the pipeline, pairs of both passes, and the backward passes that are left.

        Where backward passes are divided, weights come as many turns later as there are ranks in front.
        """
        each, count = self.round(ranks, micro_batches), self.stages_per_rank
        total = count * micro_batches
        filling = min((count - 1) * each + self.ahead * (ranks - 1 - rank), total)

        def at(number: int, kind: str) -> tuple[Action]:
            place = number // each % count
            stage = (place if kind == FORWARD else count - 1 - place) * ranks + rank
            return (Action(stage, kind, number // (each * count) * each + number % each),)

        order = [at(number, FORWARD) for number in range(filling)]
        for number in range(total):
            if filling + number < total:
                order.append(at(filling + number, FORWARD))
            order.append(at(number, INPUTS if self.divides_backward else BACKWARD))
            if self.divides_backward and number >= rank:
                order.append(at(number - rank, WEIGHTS))
        left = range(max(0, total - rank), total) if self.divides_backward else ()
        return (*order, *(at(number, WEIGHTS) for number in left))
