"""SearchResult: the plan that a search found, what it is worth, and how it came there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdmpp.plans.judge import Worth
from cdmpp.plans.plan import Plan
from cdmpp.plans.torch_settings import torch_settings
from cdmpp.units import percent, quantity


@dataclass(frozen=True)
class SearchStep:
    """One move, as it was tried."""

    move: str
    cause: str
    """What it was tried for: a part of the longest chain, or ``memory``."""
    change: str
    """The best of the plans that it led to, as it differs from the one before."""
    before: Worth
    after: Worth
    is_taken: bool


@dataclass(frozen=True)
class SearchResult:
    """The plan that was found, beside the default."""

    plan: Plan
    worth: Worth
    default: Plan
    default_worth: Worth
    memory_limit_bytes: int | None
    steps: tuple[SearchStep, ...]
    optimizer: str = "adamw"
    """For the settings."""
    flags: tuple[str, ...] = ()
    """What is assumed, a sentence each."""

    @property
    def iteration_s(self) -> float:
        """Of one step under the plan."""
        return self.worth.iteration_s

    @property
    def default_iteration_s(self) -> float:
        """Of one step under the default."""
        return self.default_worth.iteration_s

    @property
    def gain(self) -> float:
        """Examples a second over those of the default, less 1; below 0 where the default does not fit into memory."""
        return self.default_worth.batch_s / self.worth.batch_s - 1.0 if self.worth.batch_s else 0.0

    @property
    def peak_bytes(self) -> int | None:
        """Of the rank that holds most; None where that cannot be told."""
        return self.worth.peak_bytes

    @property
    def settings(self) -> tuple[str, ...]:
        """Lines of Python that realise the plan."""
        return torch_settings(self.plan, self.optimizer)

    def summary(self) -> str:
        """Some lines: the plan, what it is worth, and how to set it."""
        limit = "" if self.memory_limit_bytes is None else f", at most {quantity(self.memory_limit_bytes, 'B')} allowed"
        changes = self.plan.differences(self.default)
        found_s, default_s = (quantity(worth.batch_s, "s", 4) for worth in (self.worth, self.default_worth))
        limit_bytes, held = self.memory_limit_bytes, self.default_worth.peak_bytes
        is_over = limit_bytes is not None and held is not None and held > limit_bytes
        lines = [
            f"plan       {', '.join(changes) if changes else 'the default, as it is'}",
            f"step       {found_s} a batch, {default_s} by default: gain {percent(self.gain)}"
            f"{' over what does not fit' if is_over else ''}",
        ]
        if self.peak_bytes is not None:
            by_default = quantity(self.default_worth.peak_bytes, "B")
            lines.append(f"memory     {quantity(self.peak_bytes, 'B')}, {by_default} by default{limit}")
        return "\n".join(
            [*lines, *(f"{'' if place else 'settings':<10} {line}" for place, line in enumerate(self.settings))]
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; units are in the names of the keys."""
        return {
            "plan": self.plan.to_dict(),
            "changes": list(self.plan.differences(self.default)),
            "iteration_s": self.iteration_s,
            "default_iteration_s": self.default_iteration_s,
            "batch_s": self.worth.batch_s,
            "default_batch_s": self.default_worth.batch_s,
            "gain": self.gain,
            "peak_bytes": self.peak_bytes,
            "default_peak_bytes": self.default_worth.peak_bytes,
            "memory_limit_bytes": self.memory_limit_bytes,
            "settings": list(self.settings),
            "steps": [
                {
                    "move": one.move, "cause": one.cause, "change": one.change, "before_s": one.before.batch_s,
                    "after_s": one.after.batch_s, "peak_bytes": one.after.peak_bytes, "is_taken": one.is_taken,
                }
                for one in self.steps
            ],
            "flags": list(self.flags),
        }  # fmt: skip
