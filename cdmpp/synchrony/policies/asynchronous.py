"""Asynchronous: nobody waits for others."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.platform.limits import Limits
from cdmpp.steps.decisions import Decisions, Next
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.registry import SYNCHRONIES


@SYNCHRONIES.register
@dataclass(frozen=True)
class Asynchronous(Synchrony):
    """Each worker commits after ``every`` batches and pulls at once.

    Source: Recht et al., "Hogwild", 2011; Dean et al., "Large scale distributed deep networks", 2012 (Downpour).
    """

    LIMITS = {"every": Limits(1, 2**31, "batches")}
    name = "async"
    title = "no update waits for an exchange"

    every: int = 1
    """Batches between two commits of a worker."""

    def awaited_step(self, step: int) -> None:
        """Wait for none."""

    def decisions(self, workers: int) -> Decisions:
        """Count the batches of each worker, and decide nothing else."""
        return _Counted(workers, self.every)


class _Counted(Decisions):
    def __init__(self, workers: int, every: int) -> None:
        super().__init__(workers)
        self._every, self._left = every, [every] * workers

    def after_batch(self, worker: int, now_s: float) -> Next:
        self._left[worker] -= 1
        if self._left[worker]:
            return Next.TRAIN
        self._left[worker] = self._every
        return Next.COMMIT
