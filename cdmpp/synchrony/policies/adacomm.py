"""AdaComm: local SGD that averages more often as the loss falls."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cdmpp.errors import UsageError
from cdmpp.platform.limits import Limits, numbers
from cdmpp.steps.decisions import Decisions
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.registry import SYNCHRONIES
from cdmpp.synchrony.rounds import Rounds


@SYNCHRONIES.register
@dataclass(frozen=True)
class AdaComm(Synchrony):
    """Workers average every so many batches: ``ceil(sqrt(loss / first loss) x every)``, or half as many as before.

    The half is taken where the first is not below what there was. It is decided anew at each check.
    Source: Wang and Joshi, "Adaptive communication strategies to achieve the best error-runtime trade-off in
    local-update SGD", 2019.
    """

    LIMITS = {
        "every": Limits(1, 2**31, "batches"),
        "check_s": numbers(0, 1e9, "seconds", above=True),
    }
    name = "adacomm"
    title = "workers average more often as the loss falls"

    every: int = 10
    """Batches between two averages at the start."""
    check_s: float = 60.0
    """Seconds between two looks at the loss."""

    def decisions(self, workers: int) -> Decisions:
        """Begin rounds of ``every`` batches."""
        return _Falling(workers, self.every, self.check_s)


class _Falling(Rounds):
    def __init__(self, workers: int, every: int, check_s: float) -> None:
        super().__init__(workers, every)
        self.check_s = check_s
        self._first_every, self._first_loss = every, math.nan

    def observe(self, loss: float, now_s: float) -> None:
        if not 0 < loss < math.inf:
            raise UsageError(f"the loss is {loss} at {now_s:g} s: adacomm takes its root, so it must be above 0")
        if not now_s:
            self._first_loss = loss
            return
        found = math.ceil(math.sqrt(loss / self._first_loss) * self._first_every)
        self.every = found if found < self.every else max(1, self.every // 2)
