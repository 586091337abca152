"""Oracle: a network, devices and a batch in; every way to train it, judged and ranked, out.

All plans are judged by closed form, the best ones replayed. The same question gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from cdmpp.errors import InfeasiblePlanError, UsageError
from cdmpp.plans.front import on_front
from cdmpp.plans.limits import INPUTS, binding, terms
from cdmpp.plans.lower import lower
from cdmpp.plans.plan import Plan
from cdmpp.plans.plan_words import words_of
from cdmpp.plans.question import Judged, Question
from cdmpp.plans.refused import missing, rejected_of
from cdmpp.plans.scaling import ScalingPoint, next_limits, scaling
from cdmpp.platform.progress import shown
from cdmpp.steps.replay import replay
from cdmpp.steps.strategy_replay import exchange_warnings
from cdmpp.steps.transforms.merge_ops import merge_ops

STEPS = 1000
"""Device-hours and money are those of so many steps."""
NEAR = 1.1
"""Plans within this factor of the best one are replayed too, up to a quarter more in all."""
MOST_COMPARED = 2000
"""Plans that the Pareto front is chosen from, fastest first."""
CLOSED_FORM, REPLAY = "closed form", "replay"


@dataclass(frozen=True)
class RankedPlan:
    """One plan, judged."""

    words: str
    """The plan for a reader."""
    combination: str
    plan: Plan
    step_s: float
    low_s: float
    high_s: float
    """In 8 of 10 cases the step takes between ``low_s`` and ``high_s``, as far as kernels and collectives tell."""
    memory_bytes: float
    """Most bytes of a rank; NaN if unknown."""
    by: str
    """``CLOSED_FORM`` or ``REPLAY``."""
    terms: Mapping[str, float]
    """Term of ``limits.TERMS`` -> seconds of the step by closed form."""
    limit: str
    """The term that most of the step goes into."""
    next_limit: str = ""
    """The quantity that binds next under the same strategies, and at how many devices; empty where it was not looked
    for: it is for the combination of the best plan, and for those of all told plans with a scaling curve."""
    warnings: tuple[str, ...] = ()
    """Reasons to doubt its replay, or that PyTorch refuses it, a sentence each."""
    waits_for: str = ""
    """The rank that waits least, for which others wait, and its device; empty where devices are equal, or not replayed.
    """

    @property
    def device_hours(self) -> float:
        """Return the device-hours of ``STEPS`` steps."""
        return self.plan.ranks * self.step_s * STEPS / 3600

    def to_dict(self) -> dict[str, Any]:
        """Return all as JSON takes it; units are in the names of the keys."""
        return {
            **asdict(replace(self, plan=None)),  # type: ignore[arg-type]
            "plan": self.plan.to_dict(),
            "device_hours": self.device_hours,
        }


@dataclass(frozen=True)
class FrontPlan:
    """No other plan is as fast, holds as little and takes as few device-hours, by closed form."""

    words: str
    ranks: int
    step_s: float
    memory_bytes: float

    @property
    def device_hours(self) -> float:
        """Return the device-hours of ``STEPS`` steps."""
        return self.ranks * self.step_s * STEPS / 3600


@dataclass(frozen=True)
class OracleResult:
    """The answer to a question."""

    question: Question
    ranked: tuple[RankedPlan, ...]
    """Best first; the replayed ones before the others."""
    judged: Judged
    """All plans, with their costs by closed form."""
    rejected: Mapping[str, int]
    """Reason -> plans that it refuses."""
    scaling: tuple[ScalingPoint, ...]
    """The best plan of each kind on each number of devices; empty if nobody asked for it."""
    front: tuple[FrontPlan, ...]
    """Pareto front of time, memory and device-hours, fastest first; money is in proportion to device-hours."""
    warnings: tuple[str, ...] = ()
    top: int = 10
    """How many of the ranked plans are shown."""

    @property
    def shown(self) -> tuple[RankedPlan, ...]:
        """Return the plans of the table."""
        return self.ranked[: self.top]

    @property
    def best(self) -> RankedPlan:
        """Return the best plan."""
        return self.ranked[0]

    def named(self, asked: str) -> RankedPlan:
        """Return the plan of a place in the ranking, from 1 up, or the best one of a combination such as ``fsdp``.

        ``UsageError`` where there is none.
        """
        if asked.isdecimal():
            if 1 <= int(asked) <= len(self.ranked):
                return self.ranked[int(asked) - 1]
            raise UsageError(f"plan {asked} is not among the {len(self.ranked)} that are ranked: ask for more of them")
        if found := [one for one in self.ranked if one.combination == asked]:
            return found[0]
        plans, order = self.judged.plans, self.judged.order()
        names = [plans.combinations[number].name for number in plans.combination[order]]
        if asked not in names:
            known = ", ".join(dict.fromkeys(names))
            raise UsageError(f"no plan of {asked!r} fits: give a place from 1 to {len(self.ranked)}, or {known}")
        row = int(order[names.index(asked)])
        return _fed(self.question, _ranked(self.question, self.judged, terms(self.judged.costs), row))

    def explain(self, asked: str) -> list[tuple[str, float, float]]:
        """List the terms of a plan, most lost first: name, its seconds, those of the best plan."""
        plan = self.named(asked)
        found = [(name, seconds, self.best.terms[name]) for name, seconds in plan.terms.items()]
        return sorted(found, key=lambda one: one[2] - one[1])


Replays = Callable[[Sequence[RankedPlan]], Iterable[RankedPlan]]
"""It replays plans that were judged by closed form, in their order."""


def ask(
    question: Question,
    top: int = 10,
    replays: int = 20,
    counts: Iterable[int] = (),
    progress: bool = False,
    elsewhere: Replays | None = None,
) -> OracleResult:
    """Judge all plans and rank them.

    Args:
        question: network, devices, batch, strategies and memory.
        top: plans that are returned, and more where more are replayed.
        replays: best plans by closed form that are replayed.
        counts: numbers of devices of the scaling curve; empty: none.
        progress: whether a bar is shown on standard error while plans are replayed.
        elsewhere: who replays the best plans, as ``replayed_plan`` does; None: this process.

    Raises:
        InfeasiblePlanError: no plan is possible, or none fits into memory; it says what is missing and what would help.
        CdmppError: an unknown strategy, or as the source.
    """
    judged = question.judged()
    rejected = rejected_of(judged)
    if not judged.fits.any():
        raise InfeasiblePlanError(missing(question, judged, rejected))
    order = judged.order()
    replayed = _replayed(judged, order, replays)
    parts = terms(judged.costs)
    found = [_ranked(question, judged, parts, int(row)) for row in order[: max(top, replayed)]]
    made = (replayed_plan(question, one) for one in found[:replayed])
    first = list(elsewhere(found[:replayed]) if elsewhere else shown(made, "replays of plans", replayed, progress))
    for row in order[replayed : 2 * replayed]:  # they may be faster, as far as the closed form tells
        if judged.costs.step_s[row] >= min(one.step_s for one in first):
            break
        first.append(replayed_plan(question, _ranked(question, judged, parts, int(row))))
    found = [*sorted(first, key=lambda one: one.step_s), *(_fed(question, one) for one in found[len(first) :])]
    curve = scaling(question, counts)
    # more devices divide the model in more ways, each of them read: without a curve only for the best combination
    later = next_limits(question, tuple(dict.fromkeys(one.combination for one in found[: top if curve else 1])))
    ranked = tuple(replace(one, next_limit=later.get(one.combination, "")) for one in found)
    front = _front(question, judged, order, curve)
    return OracleResult(
        question, ranked, judged, rejected, curve, front, (*judged.warnings, *_warnings(question, ranked)), top
    )


def _replayed(judged: Judged, order: np.ndarray, replays: int) -> int:
    """How many of the first plans are replayed: those asked for, and some that are about as good."""
    if not replays:
        return 0
    step_s = judged.costs.step_s[order]
    near = int(np.count_nonzero(step_s <= NEAR * step_s[0]))
    return min(len(order), max(replays, min(near, replays + replays // 4)))


def _ranked(question: Question, judged: Judged, parts: Mapping[str, np.ndarray], row: int) -> RankedPlan:
    plans, costs = judged.plans, judged.costs
    plan, combination = question.plan(plans, row), plans.combinations[int(plans.combination[row])].name
    own = {name: float(values[row]) for name, values in parts.items()}
    low, high = float(costs.low_s[row]), float(costs.high_s[row])
    return RankedPlan(
        words_of(question, judged, row), combination, plan, float(costs.ranks_s[row]), low, high,
        float(costs.memory_bytes[row]), CLOSED_FORM, own, binding(own),
    )  # fmt: skip


def _front(
    question: Question, judged: Judged, order: np.ndarray, curve: Iterable[ScalingPoint]
) -> tuple[FrontPlan, ...]:
    """Plans of the question, and the best ones on other numbers of devices."""
    costs = judged.costs
    rows = [int(row) for row in order if not np.isnan(costs.memory_bytes[row])][:MOST_COMPARED]
    others = [one for one in curve if one.ranks != question.ranks and not np.isnan(one.memory_bytes + one.step_s)]
    found = [(float(costs.step_s[row]), float(costs.memory_bytes[row]), question.ranks) for row in rows]
    found += [(one.step_s, one.memory_bytes, one.ranks) for one in others]
    is_on = on_front([(step_s, size, step_s * ranks) for step_s, size, ranks in found])
    plans = []
    for place in np.flatnonzero(is_on):
        step_s, size, ranks = found[place]
        if place < len(rows):
            name = words_of(question, judged, rows[place])
        else:
            name = f"{others[place - len(rows)].combination} on {ranks} device{'s' * (ranks > 1)}"
        plans.append(FrontPlan(name, ranks, step_s, size))
    return tuple(sorted(plans, key=lambda one: (one.step_s, one.memory_bytes)))


def replayed_plan(question: Question, one: RankedPlan) -> RankedPlan:
    """Replay a plan that was judged by closed form."""
    topology = question.topology_of(one.plan)
    lowered = lower(question.source, one.plan, topology, question.global_batch, merge=True)
    replayed = replay(merge_ops(lowered.graph), topology, synchrony=one.plan.synchrony)
    step_s = replayed.step_s
    scale = step_s / one.step_s
    told = (*lowered.warnings, *exchange_warnings(lowered.graph.exchanges, topology))
    low_s, high_s = one.low_s * scale, one.high_s * scale
    waits_for = ""
    if one.plan.devices:
        rank = lowered.places.index(min(replayed.waits_s, key=lambda place: (replayed.waits_s[place], place)))
        waits_for = f"rank {rank} on {one.plan.devices[rank]}"
    one = replace(one, step_s=step_s, low_s=low_s, high_s=high_s, by=REPLAY, warnings=told, waits_for=waits_for)
    return _fed(question, one)


def _fed(question: Question, one: RankedPlan) -> RankedPlan:
    """The plan with an input pipeline, which a step may have to wait for; its examples come while ranks compute."""
    least_s = question.inputs_s
    limit = binding({**one.terms, INPUTS: max(0.0, least_s - one.step_s)})
    low_s, step_s, high_s = (max(seconds, least_s) for seconds in (one.low_s, one.step_s, one.high_s))
    return replace(one, step_s=step_s, low_s=low_s, high_s=high_s, limit=limit)


def _warnings(question: Question, ranked: Iterable[RankedPlan]) -> tuple[str, ...]:
    found = [*question.warnings, *question.topology(question.ranks).warnings]
    for one in list(ranked)[:1]:
        topology = question.topology_of(one.plan)
        found += one.warnings or lower(question.source, one.plan, topology, question.global_batch).warnings
    return tuple(dict.fromkeys(found))
