"""ADSP: uneven workers train without waiting and commit equally often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdmpp.errors import UsageError
from cdmpp.platform.limits import Limits, numbers
from cdmpp.steps.decisions import Decisions, Next
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.rate_search import RateSearch
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
        "target_loss": numbers(0, 1e9, above=True),
        "search_again_s": numbers(0, 1e9, "seconds", above=True),
        "search_again_rise": numbers(0, 1e3, above=True),
    }
    name = "adsp"
    title = "workers train on and commit equally often, whatever their speed"

    commits_per_check: int | None = None
    """Commits of each worker in ``check_s``; None: they are searched, from 1 up, by the time to ``target_loss``."""
    check_s: float = 60.0
    """Seconds of a period."""
    least_s: float = 10.0
    """Least seconds between a pull and the next commit."""
    catch_up: bool = False
    """In each period workers aim at the same total: the most that one has, and ``commits_per_check`` more."""
    outer_momentum: float = 0.0
    """Momentum of the servers."""
    target_loss: float | None = None
    """The loss that a search is for."""
    search_again_s: float = 1000.0
    """Commits are searched anew so long after they were found."""
    search_again_rise: float = 0.3
    """They are searched anew when the loss has risen by this part."""

    def for_target(self, loss: float) -> ADSP:
        """Search for a loss where no number of commits and no other loss is given."""
        if self.commits_per_check is not None or self.target_loss is not None:
            return self
        return replace(self, target_loss=loss)

    def decisions(self, workers: int) -> Decisions:
        """Begin with no commits; ``UsageError`` where they are to be searched for no loss."""
        if self.commits_per_check is None and self.target_loss is None:
            raise UsageError(
                "adsp searches how often workers commit by the time to a loss, and none is given: give a target loss, "
                f"or fix the commits in {self.check_s:g} s, as in adsp:1"
            )
        return _Timed(workers, self)


class _Timed(Decisions):
    def __init__(self, workers: int, settings: ADSP) -> None:
        super().__init__(workers)
        self.momentum = settings.outer_momentum
        self._settings = settings
        self._search = None
        if settings.commits_per_check is None and settings.target_loss is not None:
            self._search = RateSearch(
                settings.check_s, settings.target_loss, settings.search_again_s, settings.search_again_rise
            )
            self.check_s = self._search.look_s
        self._expected = [self._rate] * workers
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
            target = max(self._commits) + self._rate
            self._expected = [target - commits for commits in self._commits]
        wait_s = max(settings.least_s, settings.check_s / self._expected[worker] - self._took_s[worker])
        if now_s - self._pulled_s[worker] < wait_s:
            return Next.TRAIN
        self._begun_s[worker] = now_s
        return Next.COMMIT

    @property
    def _rate(self) -> int:
        """Commits of each worker in a period, as they are now."""
        return self._search.rate if self._search is not None else self._settings.commits_per_check or 1

    def observe(self, loss: float, now_s: float) -> None:
        if self._search is not None:
            before = self._search.rate
            self._search.observe(loss, now_s)
            if self._search.rate != before:
                self._expected = [self._search.rate] * self.workers

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
