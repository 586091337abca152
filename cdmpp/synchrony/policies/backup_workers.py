"""BackupWorkers: a round does not wait for its last workers."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.errors import UsageError
from cdmpp.platform.limits import Limits
from cdmpp.steps.decisions import Decisions
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.registry import SYNCHRONIES
from cdmpp.synchrony.rounds import Rounds


@SYNCHRONIES.register
@dataclass(frozen=True)
class BackupWorkers(Synchrony):
    """A round is over with the first commits of all workers but ``backups``; what comes later is dropped.

    Source: Chen et al., "Revisiting distributed synchronous SGD", 2016.
    """

    LIMITS = {"backups": Limits(0, 2**20, "workers")}
    name = "backup"
    title = "every update waits for all workers but the last ones"

    backups: int = 1
    """Workers that a round does not wait for."""

    def decisions(self, workers: int) -> Decisions:
        """Begin rounds of one batch; ``UsageError`` where no worker would be left to wait for."""
        if self.backups >= workers:
            raise UsageError(
                f"backup.backups is {self.backups} of {workers} workers: expected fewer than there are workers"
            )
        return Rounds(workers, needed=workers - self.backups)
