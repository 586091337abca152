"""RateSearch: how often workers should commit, found while the job runs (the search of ADSP).

Each candidate rate is kept for one period, in which the global loss is seen at the start, in the middle and at the end.
The curve ``1 / (a t + b) + c`` through these three says how long the target would take: a candidate's reward is the
inverse of that time, which also grows as the target comes nearer. The rate rises by one as long as the reward grows.
"""

from __future__ import annotations

import math

_LOOKS = 3
"""Losses of one candidate."""


class RateSearch:
    """It is told the global loss, and says the rate that holds now."""

    def __init__(self, period_s: float, target_loss: float, again_s: float, again_rise: float) -> None:
        """Begin with a rate of one commit a period.

        Args:
            period_s: seconds of a candidate.
            target_loss: that the job is to reach.
            again_s: seconds after which a settled rate is searched anew.
            again_rise: part by which the loss may rise above that of the settling before it is searched anew.
        """
        self.rate = 1
        self.is_searching = True
        self._period_s, self._target, self._again_s, self._again_rise = period_s, target_loss, again_s, again_rise
        self._seen: list[float] = []
        self._best = 0.0
        self._settled_s, self._settled_loss = 0.0, math.inf

    @property
    def look_s(self) -> float:
        """Seconds between two looks at the loss."""
        return self._period_s / (_LOOKS - 1)

    def observe(self, loss: float, now_s: float) -> None:
        """Take the loss of a look, one every ``look_s``."""
        if not self.is_searching:
            if now_s - self._settled_s < self._again_s and loss < (1 + self._again_rise) * self._settled_loss:
                return
            self.rate, self.is_searching, self._best, self._seen = 1, True, 0.0, []
        self._seen.append(loss)
        if len(self._seen) < _LOOKS:
            return
        reward = reward_of(self._seen, self.look_s, self._target)
        if reward > self._best:
            self._best, self.rate = reward, self.rate + 1
            self._seen = [loss]
        else:
            self.rate = max(1, self.rate - 1)
            self.is_searching, self._settled_s, self._settled_loss = False, now_s, loss


def reward_of(losses: list[float], look_s: float, target: float) -> float:
    """Compute the inverse of the seconds until ``target``, by the curve through three losses; 0: it is never reached.

    Args:
        losses: three, ``look_s`` seconds from each other.
        look_s: in seconds.
        target: the loss; at or above the last one the reward is infinite.
    """
    first, middle, last = losses
    if last <= target:
        return math.inf
    bend = first + last - 2 * middle
    floor = (2 * first * last - middle * (first + last)) / bend if bend > 0 else 0.0
    floor = min(max(0.0, floor), last)
    if last >= first or floor >= target:
        return 0.0
    start, end = 1 / (first - floor), 1 / (last - floor)
    return (end - start) / (2 * look_s) / (1 / (target - floor) - start)
