"""Synchronous: every update waits for the exchanges of its own step."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.steps.decisions import Decisions
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.registry import SYNCHRONIES
from cdmpp.synchrony.rounds import Rounds


@SYNCHRONIES.register
@dataclass(frozen=True)
class Synchronous(Synchrony):
    """All workers update with the same gradients, as one device does with the whole batch.

    Source: bulk synchronous parallel, Valiant, "A bridging model for parallel computation", 1990.
    """

    name = "bsp"
    title = "every update waits for the exchanges of its own step"

    def awaited_step(self, step: int) -> int:
        """Wait for the same step."""
        return step

    def decisions(self, workers: int) -> Decisions:
        """Begin rounds of one batch."""
        return Rounds(workers)
