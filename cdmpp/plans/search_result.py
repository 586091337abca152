"""SearchResult: the plan that a search found, its cost, and the proposals that led to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdmpp.network.precision import Precision
from cdmpp.plans.cost import Cost
from cdmpp.plans.plan import Plan
from cdmpp.plans.torch_settings import PLAIN, torch_settings


@dataclass(frozen=True)
class SearchStep:
    """This is one proposal, as it was tried."""

    proposal: str
    cause: str
    """The part of the critical path that it was to shorten, or ``memory``."""
    change: str
    """The best plan that it led to, as it differs from the one before."""
    before: Cost
    after: Cost
    is_taken: bool


@dataclass(frozen=True)
class SearchResult:
    """This plan was found; the default is next to it."""

    plan: Plan
    cost: Cost
    default: Plan
    default_cost: Cost
    memory_limit_bytes: int | None
    steps: tuple[SearchStep, ...]
    optimizer: str = "adamw"
    """The optimizer that the settings name."""
    warnings: tuple[str, ...] = ()
    """Assumptions and limits of the result, a sentence each."""
    precision: Precision = PLAIN
    """Types of the job, which the settings name."""

    @property
    def iteration_s(self) -> float:
        """One step under the plan takes so long."""
        return self.cost.iteration_s

    @property
    def default_iteration_s(self) -> float:
        """One step under the default takes so long."""
        return self.default_cost.iteration_s

    @property
    def gain(self) -> float:
        """Return examples a second over those of the default, less 1; below 0 where the default does not fit."""
        return self.default_cost.batch_s / self.cost.batch_s - 1.0 if self.cost.batch_s else 0.0

    @property
    def peak_bytes(self) -> int | None:
        """The rank that needs the most needs so many bytes at its peak; None if memory is unknown."""
        return self.cost.peak_bytes

    @property
    def settings(self) -> tuple[str, ...]:
        """These lines of Python realise the plan."""
        return torch_settings(self.plan, self.optimizer, self.precision)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON takes it; units are in the names of the keys."""
        return {
            "plan": self.plan.to_dict(),
            "changes": list(self.plan.changes(self.default)),
            "iteration_s": self.iteration_s,
            "default_iteration_s": self.default_iteration_s,
            "batch_s": self.cost.batch_s,
            "default_batch_s": self.default_cost.batch_s,
            "gain": self.gain,
            "peak_bytes": self.peak_bytes,
            "default_peak_bytes": self.default_cost.peak_bytes,
            "memory_limit_bytes": self.memory_limit_bytes,
            "settings": list(self.settings),
            "steps": [
                {
                    "proposal": one.proposal, "cause": one.cause, "change": one.change, "before_s": one.before.batch_s,
                    "after_s": one.after.batch_s, "peak_bytes": one.after.peak_bytes, "is_taken": one.is_taken,
                }
                for one in self.steps
            ],
            "warnings": list(self.warnings),
        }  # fmt: skip
