"""Cost: what a step takes and holds under a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdmpp.network.training_step import PHASES

CAUSES = ("communication", "host", "update", "compute")
"""Parts of the critical path of a step."""
_CAUSE_OF = {
    **dict.fromkeys(("gap", "start", "delay", "end"), "host"),
    **dict.fromkeys(PHASES[:2], "compute"),
    "update": "update",
}
"""Kind of span -> cause; all others are communication."""


def by_cause(critical_s: Mapping[str, float]) -> dict[str, float]:
    """Sum the seconds of each kind of span on the critical path by cause."""
    seconds: dict[str, float] = {}
    for kind, own_s in critical_s.items():
        cause = _CAUSE_OF.get(kind, "communication")
        seconds[cause] = seconds.get(cause, 0.0) + own_s
    return seconds


@dataclass(frozen=True)
class Cost:
    """A plan has this cost."""

    iteration_s: float
    """Seconds of a whole step, from update to update."""
    peak_bytes: int | None
    """Peak bytes on the rank that needs the most; None if memory is unknown."""
    critical_s: Mapping[str, float]
    """One of ``CAUSES`` -> seconds on the critical path of the step."""
    gradient_accumulation_steps: int = 1

    @property
    def batch_s(self) -> float:
        """One batch of each rank takes so long; plans with other numbers of accumulation steps compare by it."""
        return self.iteration_s / self.gradient_accumulation_steps
