"""ClosedLoop: the pace of equal workers that commit to servers and wait for nobody, as a closed queueing network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

_CLOSE = 1e-6


@dataclass(frozen=True)
class ClosedLoop:
    """Workers are the customers; what a commit keeps of each server are the stations, one after another.

    Mean value analysis (Reiser and Lavenberg, "Mean-value analysis of closed multichain queuing networks", 1980): a
    worker finds at each station the queue of a network with one worker fewer.
    """

    workers: int
    train_s: float
    """Seconds that a worker trains between two commits."""
    served_s: tuple[float, ...]
    """Seconds for which one commit keeps each station of a server: its link in, its adding, its link out."""
    alone_s: float
    """Seconds of a push and a pull where nobody else exchanges, those at the stations counted."""
    overlaps: bool
    """A worker trains on while it pushes and pulls, with one commit under way."""

    @cached_property
    def cycle_s(self) -> float:
        """Seconds from a commit of a worker to its next one.

        Where exchanges overlap, it is the shortest steady cycle in which they end.
        """
        if not self.overlaps:
            return self._passed(None)[0]
        least_s = max(self.train_s, self.alone_s, self.workers * max(self.served_s))
        low_s, high_s = least_s, least_s
        while self._passed(high_s)[1] > high_s:
            low_s, high_s = high_s, 1.25 * high_s
        while high_s > (1 + _CLOSE) * low_s:
            middle_s = (low_s + high_s) / 2
            low_s, high_s = (middle_s, high_s) if self._passed(middle_s)[1] > middle_s else (low_s, middle_s)
        return high_s

    def _passed(self, steady_s: float | None) -> tuple[float, float]:
        """Seconds of a cycle, and of a push and a pull in it, with worker after worker added.

        Args:
            steady_s: seconds of each cycle; None: to train, then to push and pull.
        """
        delay_s, busiest_s = self.alone_s - sum(self.served_s), max(self.served_s)
        queues, cycle_s, exchange_s = (0.0,) * len(self.served_s), 0.0, 0.0
        for workers in range(1, self.workers + 1):
            each_s = [one * (1 + queue) for one, queue in zip(self.served_s, queues, strict=True)]
            exchange_s = delay_s + sum(each_s)
            cycle_s = max(self.train_s + exchange_s if steady_s is None else steady_s, workers * busiest_s)
            queues = tuple(workers / cycle_s * one for one in each_s)
        return cycle_s, exchange_s
