"""LocalSGD and DiLoCo: workers train many batches on their own between two averages."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.platform.limits import Limits, numbers
from cdmpp.steps.decisions import Decisions
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.registry import SYNCHRONIES
from cdmpp.synchrony.rounds import Rounds


@SYNCHRONIES.register
@dataclass(frozen=True)
class LocalSGD(Synchrony):
    """Every worker trains ``every`` batches, then all updates are averaged.

    Source: Stich, "Local SGD converges fast and communicates little", 2019.
    """

    LIMITS = {
        "every": Limits(1, 2**31, "batches"),
        "outer_rate": numbers(0, 1e3, above=True),
        "outer_momentum": numbers(0, 0.9999),
    }
    name = "local"
    title = "workers average their parameters every so many batches"

    every: int = 8
    """Batches between two averages."""
    outer_rate: float = 1.0
    """Factor of the mean update, the learning rate of the servers."""
    outer_momentum: float = 0.0
    """Momentum of the servers, from one average to the next."""
    nesterov: bool = False
    """The momentum looks ahead."""

    def decisions(self, workers: int) -> Decisions:
        """Begin rounds of ``every`` batches."""
        return Rounds(workers, self.every, None, self.outer_rate, self.outer_momentum, self.nesterov)


@SYNCHRONIES.register
@dataclass(frozen=True)
class DiLoCo(LocalSGD):
    """Local SGD whose servers move by Nesterov momentum.

    The defaults are those of Douillard et al., "DiLoCo: distributed low-communication training of language models",
    2023.
    """

    name = "diloco"
    title = "workers average every so many batches, and the average has Nesterov momentum"

    every: int = 500
    outer_rate: float = 0.7
    outer_momentum: float = 0.9
    nesterov: bool = True
