"""Judge: what a plan is worth, by replay. What the search asks, whatever it knows the job from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cdmpp.plans.plan import Plan

CAUSES = ("communication", "host", "update", "compute")
"""What the longest chain of a step is made of."""


@dataclass(frozen=True)
class Worth:
    """One plan, replayed."""

    iteration_s: float
    """Of a whole step, from update to update."""
    peak_bytes: int | None
    """Of the rank that holds most; None where that cannot be told."""
    path_s: Mapping[str, float]
    """Cause -> seconds on the longest chain of the step."""
    micro_steps: int = 1

    @property
    def batch_s(self) -> float:
        """Seconds for the batch that a rank has at a time: steps with other numbers of these compare by it."""
        return self.iteration_s / self.micro_steps


@dataclass(frozen=True)
class Choices:
    """What may be set in a job."""

    ranks: int
    gradient_bytes: int
    """Of all gradients."""
    units: tuple[str, ...] = ()
    """That may be recomputed."""
    bucket_view: str = ""
    """What is known that it saves: ``memory``, or ``compute``; empty: nothing."""
    fused_update: bool = False
    micro_steps: bool = False
    """Whether gradients of several batches can be added up."""


class Judge(Protocol):
    """A job whose plans can be judged."""

    @property
    def default(self) -> Plan:
        """Settings that nobody chose."""
        ...

    @property
    def choices(self) -> Choices:
        """What may be set."""
        ...

    @property
    def assumed(self) -> tuple[str, ...]:
        """What holds for all that it says, a sentence each."""
        ...

    def worth(self, plan: Plan) -> Worth:
        """Of a plan that ``choices`` allow."""
        ...

    def peak_bytes(self, plan: Plan) -> int | None:
        """As ``worth`` tells it, without a replay."""
        ...
