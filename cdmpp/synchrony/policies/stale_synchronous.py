"""StaleSynchronous: a worker may be so many commits ahead of the slowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.platform.limits import Limits
from cdmpp.steps.decisions import Decisions
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.registry import SYNCHRONIES


@SYNCHRONIES.register
@dataclass(frozen=True)
class StaleSynchronous(Synchrony):
    """After its commit number c a worker goes on where c less the commits of the slowest worker is at most ``slack``.

    A slack of 0 takes the time of bsp; one beyond all commits of a job that of async.
    Source: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", 2013.
    """

    LIMITS = {"slack": Limits(0, 2**31, "commits")}
    name = "ssp"
    title = "a worker waits once it is too many commits ahead of the slowest"

    slack: int = 40
    """Commits that a worker may be ahead."""

    def awaited_step(self, step: int) -> int:
        """Wait for the step that lies the slack before."""
        return step - self.slack

    def decisions(self, workers: int) -> Decisions:
        """Begin with no commits."""
        return _Clocks(workers, self.slack)


class _Clocks(Decisions):
    def __init__(self, workers: int, slack: int) -> None:
        super().__init__(workers)
        self._slack = slack
        self._commits = [0] * workers
        self._at = {0: workers}
        """Number of commits -> how many workers have so many."""
        self._least = 0
        self._waiting: dict[int, list[int]] = {}
        """Number of commits -> the workers that wait with so many."""

    def applied(self, worker: int, now_s: float) -> Sequence[int]:
        commits = self._commits[worker] = self._commits[worker] + 1
        self._at[commits - 1] -= 1
        self._at[commits] = self._at.get(commits, 0) + 1
        self._waiting.setdefault(commits, []).append(worker)
        released = list[int]()
        while self._at.get(self._least) == 0:
            del self._at[self._least]
            self._least += 1
            released += self._waiting.pop(self._least + self._slack, ())
        if commits - self._least <= self._slack:
            released += self._waiting.pop(commits, ())
        return released
