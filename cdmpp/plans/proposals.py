"""Proposals: what may be changed in a plan, and which part of the critical path that may shorten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cdmpp.plans.plan import Plan
from cdmpp.plans.search_space import SearchSpace


@dataclass(frozen=True)
class Proposal:
    """A proposal is one kind of change, with all plans that it may lead to."""

    name: str
    cause: str
    """One of ``cost.CAUSES``: a proposal is not tried where that has no part of the critical path."""
    plans: tuple[Plan, ...]


def proposals(plan: Plan, space: SearchSpace, most_accumulation_steps: int = 1) -> Iterator[Proposal]:
    """List changes of ``plan``; those that lead to no other plan are left out."""
    for name, cause, found in _all(plan, space, most_accumulation_steps):
        others = tuple(dict.fromkeys(other for other in found if other != plan))
        if others:
            yield Proposal(name, cause, others)


def _all(plan: Plan, space: SearchSpace, most_accumulation_steps: int) -> Iterator[tuple[str, str, list[Plan]]]:
    if plan.ranks > 1:
        for name, cause, found in plan.strategy.proposals(space.graph):
            yield name, cause, [replace(plan, strategy=one) for one in found]
    if space.can_fuse_update:
        yield "fused update", "host", [replace(plan, update="fused")]
    if space.can_accumulate:
        steps = [2**power for power in range(most_accumulation_steps.bit_length())]
        plans = [replace(plan, gradient_accumulation_steps=count) for count in steps]
        yield "gradient accumulation", "communication", plans


def memory_savers(plan: Plan, space: SearchSpace) -> Iterator[tuple[str, Plan]]:
    """List plans that may hold less, each with one setting changed, by the name of the change."""
    for name, strategy in plan.strategy.memory_savers(plan.ranks):
        yield name, replace(plan, strategy=strategy)
    if plan.gradient_accumulation_steps > 1:
        yield "no gradient accumulation", replace(plan, gradient_accumulation_steps=1)
    for name in space.modules:
        if name not in plan.recompute:
            yield f"recompute {name}", replace(plan, recompute=with_module(plan.recompute, name, space))


def with_module(recompute: tuple[str, ...], name: str, space: SearchSpace) -> tuple[str, ...]:
    """Recompute one more module, in the order of the model."""
    return tuple(module for module in space.modules if module in recompute or module == name)
