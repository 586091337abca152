"""SearchResult: the plan that a search found, its cost, and the proposals that led to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdmpp.plans.cost import Cost
from cdmpp.plans.plan import Plan
from cdmpp.plans.torch_settings import torch_settings
from cdmpp.units import percent, quantity


@dataclass(frozen=True)
class SearchStep:
    """One proposal, as it was tried."""

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
    """The plan that was found, next to the default."""

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

    @property
    def iteration_s(self) -> float:
        """Seconds of one step under the plan."""
        return self.cost.iteration_s

    @property
    def default_iteration_s(self) -> float:
        """Seconds of one step under the default."""
        return self.default_cost.iteration_s

    @property
    def gain(self) -> float:
        """Examples a second over those of the default, less 1; below 0 where the default does not fit into memory."""
        return self.default_cost.batch_s / self.cost.batch_s - 1.0 if self.cost.batch_s else 0.0

    @property
    def peak_bytes(self) -> int | None:
        """Peak bytes on the rank that needs the most; None if memory is unknown."""
        return self.cost.peak_bytes

    @property
    def settings(self) -> tuple[str, ...]:
        """Lines of Python that realise the plan."""
        return torch_settings(self.plan, self.optimizer)

    def summary(self) -> str:
        """The plan, its cost, and the lines that set it."""
        limit = "" if self.memory_limit_bytes is None else f", at most {quantity(self.memory_limit_bytes, 'B')} allowed"
        changes = self.plan.changes(self.default)
        found_s, default_s = (quantity(cost.batch_s, "s", 4) for cost in (self.cost, self.default_cost))
        limit_bytes, held = self.memory_limit_bytes, self.default_cost.peak_bytes
        is_over = limit_bytes is not None and held is not None and held > limit_bytes
        lines = [
            f"plan       {', '.join(changes) if changes else 'the default, as it is'}",
            f"step       {found_s} a batch, {default_s} by default: gain {percent(self.gain)}"
            f"{' over what does not fit' if is_over else ''}",
        ]
        if self.peak_bytes is not None:
            by_default = quantity(self.default_cost.peak_bytes, "B")
            lines.append(f"memory     {quantity(self.peak_bytes, 'B')}, {by_default} by default{limit}")
        return "\n".join(
            [*lines, *(f"{'' if place else 'settings':<10} {line}" for place, line in enumerate(self.settings))]
        )

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON takes it; units are in the names of the keys."""
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
