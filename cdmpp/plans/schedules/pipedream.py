"""PipeDream: 1F1B without flushes, an update for each micro-batch, weights stashed for its backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.plans.schedules.one_forward_one_backward import OneForwardOneBackward
from cdmpp.plans.schedules.registry import SCHEDULES


@SCHEDULES.register
@dataclass(frozen=True)
class PipeDream(OneForwardOneBackward):
    """A stage holds a version of its weights for each micro-batch under way (Narayanan and others, SOSP 2019)."""

    name = "pipedream"
    title = "1F1B without flushes, weights stashed"
    is_in_torch = False
    flushes = False
    updates_each = True

    def weight_versions(self, rank: int, ranks: int) -> int:
        """Return one for each stage from this one on."""
        return ranks - rank

    def staleness(self, rank: int, ranks: int) -> int:
        """Return one for each stage behind this one."""
        return ranks - rank - 1

    def warnings(self, ranks: int, micro_batches: int) -> tuple[str, ...]:
        """Say nothing: PyTorch has no such schedule."""
        return ()
