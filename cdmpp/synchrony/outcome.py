"""JobOutcome: what each worker and each server of a job has done after some time, replayed or measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cdmpp.synchrony.progress import Progress


@dataclass(frozen=True)
class WorkerShare:
    """What one worker did. The time in which it neither waited nor communicated it trained, from its start on."""

    batches: int
    """Batches that it ended."""
    samples: int
    commits: int
    """Commits of it that the servers added; those that came too late are not counted."""
    dropped: int
    """Commits that came too late."""
    waiting_s: float
    """Seconds in which it stood still for others: before it may push, and from the end of its push until its pull
    begins, less the time in which its own update was added."""
    communication_s: float
    """Seconds in which it stood still while it pushed or pulled, or its update was added."""
    staleness: Mapping[int, int]
    """Number of commits of others that were added between a pull and the own commit of it -> how often."""
    sent_bytes: float
    received_bytes: float

    @cached_property
    def staleness_mean(self) -> float:
        """The mean staleness of its commits; 0 without commits."""
        return sum(k * n for k, n in self.staleness.items()) / max(1, sum(self.staleness.values()))

    def staleness_quantile(self, quantile: float) -> int:
        """Return the staleness that this part of its commits, from 0 to 1, does not exceed; 0 without commits."""
        if not self.staleness:
            return 0
        values = np.array(sorted(self.staleness))
        counts = np.cumsum([self.staleness[value] for value in values])
        return int(values[min(np.searchsorted(counts, quantile * counts[-1]), len(values) - 1)])


@dataclass(frozen=True)
class ServerShare:
    """What one server did."""

    busy_s: float
    """Seconds in which it added updates."""
    queue: float
    """Mean number of commits that wait for it to add them, the one under way counted."""
    sent_bytes: float
    received_bytes: float


@dataclass(frozen=True)
class JobOutcome:
    """All workers and servers of one job."""

    seconds: float
    """They worked for so long."""
    workers: tuple[WorkerShare, ...]
    servers: tuple[ServerShare, ...]
    limit: str
    """What limits the samples a second; one of ``limit.LIMITS``."""
    progress: tuple[Progress, ...]
    """The start, and what had moved the parameters at commits about equally far from each other."""

    @property
    def samples(self) -> int:
        """All workers trained so many samples."""
        return sum(worker.samples for worker in self.workers)

    @property
    def samples_per_s(self) -> float:
        """All workers together train so many samples a second."""
        return self.samples / self.seconds

    @property
    def committed_per_s(self) -> float:
        """Samples a second that moved the parameters, until the last commit of ``progress``."""
        last = self.progress[-1]
        return last.samples / last.seconds if last.seconds else 0.0

    @property
    def commits(self) -> int:
        """The servers added so many commits."""
        return sum(worker.commits for worker in self.workers)

    @property
    def waiting_share(self) -> float:
        """The mean part of the time in which a worker waits for others, from 0 to 1."""
        return float(np.mean([worker.waiting_s for worker in self.workers])) / self.seconds

    @property
    def communication_share(self) -> float:
        """The mean part of the time in which a worker stands still while it communicates, from 0 to 1."""
        return float(np.mean([worker.communication_s for worker in self.workers])) / self.seconds
