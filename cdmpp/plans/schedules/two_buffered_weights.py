"""2BW: 1F1B without flushes, one update a step, two versions of the weights."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.plans.schedules.one_forward_one_backward import OneForwardOneBackward
from cdmpp.plans.schedules.registry import SCHEDULES


@SCHEDULES.register
@dataclass(frozen=True)
class TwoBufferedWeights(OneForwardOneBackward):
    """Gradients of a step are those of the weights one update ago (PipeDream-2BW, Narayanan and others, ICML 2021).

    A step needs a micro-batch or more for each stage, so that two versions suffice.
    """

    name = "2bw"
    title = "1F1B without flushes, two versions of the weights"
    is_in_torch = False
    flushes = False

    def weight_versions(self, rank: int, ranks: int) -> int:  # noqa: ARG002
        """Return two; one where there is one stage."""
        return min(2, ranks)

    def staleness(self, rank: int, ranks: int) -> int:  # noqa: ARG002
        """Return one, on all stages."""
        return min(1, ranks - 1)

    def why_not(self, ranks: int, micro_batches: int) -> str:
        """Say where two versions of the weights are too few."""
        if micro_batches >= ranks:
            return ""
        return (
            f"2bw has {micro_batches} micro-batches a step on {ranks} stages: those of more than two updates are under "
            f"way, and two versions of the weights do not suffice; give {ranks} micro-batches or more"
        )

    def warnings(self, ranks: int, micro_batches: int) -> tuple[str, ...]:
        """Say nothing: PyTorch has no such schedule."""
        return ()
