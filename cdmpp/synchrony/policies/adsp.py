"""ADSP: uneven workers train without waiting and commit equally often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.platform.limits import Limits, numbers
from cdmpp.steps.decisions import Decisions, Next
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.registry import SYNCHRONIES


@SYNCHRONIES.register
@dataclass(frozen=True)
class ADSP(Synchrony):
    """A worker commits after the first batch that ends ``check_s / commits_per_check`` or more after its last commit.

    The seconds are counted from the end of its last pull, less what that commit took from its begin to the end of the
    pull, and they are never fewer than ``least_s``. Updates are divided by the number of workers.
    Source: Hu, Wang and Wu, "Distributed machine learning through heterogeneous edge systems", 2020, and the code of
    its authors.
    """

    LIMITS = {
        "commits_per_check": Limits(1, 2**31, "commits"),
        "check_s": numbers(0, 1e9, "seconds", above=True),
        "least_s": numbers(0, 1e9, "seconds"),
        "outer_momentum": numbers(0, 0.9999),
    }
    name = "adsp"
    title = "workers train on and commit equally often, whatever their speed"

    commits_per_check: int = 1
    """Commits of each worker in ``check_s``."""
    check_s: float = 60.0
    """Seconds of a period."""
    least_s: float = 10.0
    """Least seconds between a pull and the next commit."""
    catch_up: bool = False
    """In each period workers aim at the same total: the most that one has, and ``commits_per_check`` more."""
    outer_momentum: float = 0.0
    """Momentum of the servers."""

    def decisions(self, workers: int) -> Decisions:
        """Begin with no commits."""
        return _Timed(workers, self)


class _Timed(Decisions):
    def __init__(self, workers: int, settings: ADSP) -> None:
        super().__init__(workers)
        self.momentum = settings.outer_momentum
        self._settings = settings
        self._expected = [settings.commits_per_check] * workers
        """Commits of each worker in a period."""
        self._commits = [0] * workers
        self._begun_s, self._pulled_s, self._took_s = ([0.0] * workers for _ in range(3))
        """Begin and end of each worker's last commit, and what it took."""
        self._period_s = settings.check_s
        """End of the present period."""

    def after_batch(self, worker: int, now_s: float) -> Next:
        settings = self._settings
        if settings.catch_up and now_s >= self._period_s:
            self._period_s += settings.check_s * ((now_s - self._period_s) // settings.check_s + 1)
            target = max(self._commits) + settings.commits_per_check
            self._expected = [target - commits for commits in self._commits]
        wait_s = max(settings.least_s, settings.check_s / self._expected[worker] - self._took_s[worker])
        if now_s - self._pulled_s[worker] < wait_s:
            return Next.TRAIN
        self._begun_s[worker] = now_s
        return Next.COMMIT

    def weight(self, worker: int, now_s: float) -> float:
        return 1.0 / self.workers

    def pulled(self, worker: int, now_s: float) -> Sequence[int]:
        self._commits[worker] += 1
        self._pulled_s[worker], self._took_s[worker] = now_s, now_s - self._begun_s[worker]
        return ()


def implicit_momentum(batches_per_commit: Sequence[float]) -> float:
    """Compute the momentum that seldom commits amount to: 1 - 1 / (1 + (1 - 1 / workers) x all batches per commit).

    Source: the paper of ``ADSP``; one number for each worker.
    """
    return 1 - 1 / (1 + (1 - 1 / len(batches_per_commit)) * sum(batches_per_commit))
