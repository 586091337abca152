"""Candidates: every plan that a question allows, a column a setting. One that cannot be keeps the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.plans.combinations import Combination
from cdmpp.plans.degrees import BATCHED, REPLICAS, TITLES, ParallelDegrees
from cdmpp.plans.plan import ACCUMULATION
from cdmpp.plans.schedules import LOOPED, SCHEDULES
from cdmpp.plans.strategies.pipeline import why_not_with
from cdmpp.steps.schedule import Schedule
from cdmpp.steps.strategy import Strategy

IntArray = NDArray[np.int64]
DEGREES = tuple(one.name for one in fields(ParallelDegrees))
VALID, FACTORS, LIMIT, BATCH, SCHEDULE = range(5)
"""Reasons by number."""


def _unknown(degree: str, ranks: int, strategies: Sequence[Strategy]) -> str:  # noqa: ARG001
    return ""


@dataclass(frozen=True)
class Candidates:
    """All arrays have one number for each plan, in an order that only the question decides."""

    combinations: tuple[Combination, ...]
    ranks: int
    global_batch: int
    limits: Mapping[str, int]
    """Degree -> the largest one that the network allows."""
    schedules: tuple[Schedule, ...]
    combination: IntArray
    """Place in ``combinations``."""
    degrees: IntArray
    """A row a plan, a column for each of ``DEGREES``."""
    micro_batch: IntArray
    """Examples of one forward pass of one rank; 0 where the batch cannot be divided."""
    micro_batches: IntArray
    """Forward passes of one rank in one step: micro-batches of a pipeline, else gradient accumulation steps."""
    schedule: IntArray
    """Place in ``schedules``; 0 without a pipeline."""
    recompute: IntArray
    """1 where every module runs its forward pass again in the backward pass."""
    reason: IntArray
    """``VALID``, or why the plan cannot be."""
    refusal: Callable[[str, int, Sequence[Strategy]], str] = field(default=_unknown, kw_only=True)
    """Degree over its limit, ranks and strategies that divide -> layer and rule, as ``StepSource.refusal`` says."""
    is_torch: bool = field(default=False, kw_only=True)
    """True if PyTorch runs the plans: those at which it stops are left out."""

    def __len__(self) -> int:
        return len(self.reason)

    def degree(self, *names: str) -> IntArray:
        """Return the product of some degrees of each plan."""
        return np.prod(self.degrees[:, [DEGREES.index(name) for name in names]], axis=1, dtype=np.int64)

    @property
    def replicas(self) -> IntArray:
        """Return the degrees of replicas; a row a plan."""
        return self.degrees[:, [DEGREES.index(name) for name in REPLICAS]]

    @property
    def dividing(self) -> IntArray:
        """Return the degrees that divide the model, as ``degrees``: those of replicas are 1."""
        found = self.degrees.copy()
        found[:, [DEGREES.index(name) for name in REPLICAS]] = 1
        return found

    def taken(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Candidates:
        """Keep some plans, in the order of ``rows``."""
        arrays = {one.name: getattr(self, one.name)[rows] for one in fields(self) if one.type == "IntArray"}
        return replace(self, **arrays)

    @classmethod
    def joined(cls, each: Sequence[Candidates]) -> Candidates:
        """Join plans of the same combinations for as many devices, at several global batches.

        ``global_batch`` is that of the first, so that ``why_not`` is for each of ``each`` to say.
        """
        names = [one.name for one in fields(cls) if one.type == "IntArray"]
        arrays: dict[str, Any] = {name: np.concatenate([getattr(own, name) for own in each]) for name in names}
        return replace(each[0], **arrays)

    def degrees_of(self, row: int) -> ParallelDegrees:
        """Return the degrees of one plan."""
        return _degrees_of(tuple(self.degrees[row].tolist()))

    def division_of(self, row: int) -> ParallelDegrees:
        """Return the degrees of one plan that divide the model; those of replicas are 1."""
        return _degrees_of(
            tuple(1 if name in REPLICAS else int(self.degrees[row, i]) for i, name in enumerate(DEGREES))
        )

    def why_not(self, row: int) -> str:
        """Say why a plan cannot be, with its numbers; empty where it can."""
        reason, combination = int(self.reason[row]), self.combinations[int(self.combination[row])]
        if reason == FACTORS:
            many = len(combination.degrees)
            return f"{self.ranks} devices are no product of {many} degree{'s' * (many > 1)} above 1"
        if reason == LIMIT:
            degrees = self.degrees_of(row)
            name = next(name for name, most in self.limits.items() if getattr(degrees, name) > most)
            ranks, most = getattr(degrees, name), self.limits[name]
            why = self.refusal(name, ranks, combination.model_parallel)
            return why or f"{TITLES[name]} over {ranks} ranks: this network allows {most}"
        if reason == BATCH:
            replicas = int(self.degree(*BATCHED)[row])
            return f"{self.global_batch} examples cannot be divided evenly among {replicas} replicas"
        if reason == SCHEDULE:
            schedule, ranks = self.schedules[int(self.schedule[row])], self.degrees_of(row).pp
            averaging = combination.strategy if int(self.degree(*BATCHED)[row]) > 1 else None
            many = int(self.micro_batches[row])
            return _why_not(schedule, ranks, many, self.limits, averaging, combination, self.is_torch) or (
                f"{schedule.name} {why_not_with(schedule, averaging, bool(self.recompute[row]))}"
            )
        return ""


def candidates(
    combinations: Sequence[Combination],
    ranks: int,
    global_batch: int,
    limits: Mapping[str, int],
    schedules: Sequence[Schedule] | None = None,
    can_recompute: bool = True,
    is_torch: bool = False,
) -> Candidates:
    """List every plan for ``ranks`` devices: degrees, micro-batches, schedules, with and without recomputing.

    Args:
        combinations: strategies that are tried.
        ranks: number of devices; all degrees of a plan multiply to it.
        global_batch: examples of one step of all ranks.
        limits: degree -> the largest one that the network allows; degrees that are not named have no limit.
        schedules: of a pipeline; None: all that are known.
        can_recompute: whether the network has modules that can be recomputed.
        is_torch: whether PyTorch runs the plans, so that those at which it stops are left out.
    """
    schedules = searched() if schedules is None else schedules
    ways = [(place, one, degrees) for place, one in enumerate(combinations) for degrees in _degrees(one, ranks)]
    blocks = [
        _block(*way, global_batch, limits, schedules, can_recompute, is_torch)
        for way in (ways[:1] if ranks == 1 else ways)  # a device of its own divides nothing, whatever its strategy
    ]
    columns = np.concatenate(blocks) if blocks else np.zeros((0, 6 + len(DEGREES)), np.int64)
    combination, micro_batch, micro_batches, schedule, recompute, reason = columns[:, :6].T
    return Candidates(
        tuple(combinations), ranks, global_batch, dict(limits), tuple(schedules), combination, columns[:, 6:],
        micro_batch, micro_batches, schedule, recompute, reason, is_torch=is_torch,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _degrees_of(values: tuple[int, ...]) -> ParallelDegrees:
    return ParallelDegrees(*values)


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """List all divisors, rising."""
    low = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return tuple(sorted({*low, *(number // one for one in low)}))


@lru_cache(maxsize=512)
def _grid(*lengths: int) -> IntArray:
    """All combinations of numbers below each of ``lengths``; a row a number, the last one changes first."""
    return np.indices(lengths).reshape(len(lengths), -1)


def _degrees(one: Combination, ranks: int) -> Iterator[dict[str, int] | None]:
    """Degrees of a combination that multiply to ``ranks``, each above 1; None where there are none."""
    if ranks == 1:
        if not one.model_parallel and len(one.degrees) == 1:
            yield {}
        return
    found = [dict(zip(one.degrees, values, strict=True)) for values in factors(ranks, len(one.degrees))]
    yield from found
    if not found:
        yield None


def factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """List ordered tuples of ``count`` numbers above 1 whose product is ``number``."""
    if count == 1:
        if number > 1:
            yield (number,)
        return
    for first in divisors(number)[1:]:
        for rest in factors(number // first, count - 1):
            yield (first, *rest)


def _block(
    place: int, one: Combination, degrees: Mapping[str, int] | None, batch: int, limits: Mapping[str, int],
    schedules: Sequence[Schedule], can_recompute: bool, is_torch: bool,
) -> IntArray:  # fmt: skip
    """Rows of one combination with these degrees: micro-batches x schedules x recomputing."""
    own = degrees or {}
    replicas, stages = math.prod(own.get(name, 1) for name in BATCHED), own.get("pp", 1)
    reason = VALID
    if degrees is None:
        reason = FACTORS
    elif any(value > limits.get(name, value) for name, value in own.items()):
        reason = LIMIT
    elif batch % replicas:
        reason = BATCH
    counts, variants, again = [0], 1, 1
    if reason == VALID:
        each = batch // replicas
        can_divide = stages > 1 or one.strategy.can_accumulate
        counts = [count for count in divisors(each) if count in ACCUMULATION] if can_divide else [1]
        variants, again = (len(schedules) if stages > 1 else 1), 1 + can_recompute
    micro = np.array([batch // replicas // count if count else 0 for count in counts])
    number, schedule, recompute = _grid(len(counts), variants, again)
    rows = np.empty((len(number), 6 + len(DEGREES)), np.int64)
    rows[:, 0], rows[:, 1], rows[:, 2] = place, micro[number], np.array(counts)[number]
    rows[:, 3], rows[:, 4], rows[:, 5] = schedule, recompute, reason
    rows[:, 6:] = [own.get(name, 1) for name in DEGREES]
    if stages == 1 or reason != VALID:
        return rows
    if variants > 1:
        rows = rows[(rows[:, 2] != 1) | np.isin(rows[:, 3], _of_one(tuple(schedules), stages))]
    averaging = one.strategy if replicas > 1 else None
    for number, order in enumerate(schedules):
        is_own = rows[:, 3] == number
        wrong = [bool(_why_not(order, stages, int(many), limits, averaging, one, is_torch)) for many in rows[is_own, 2]]
        again = bool(why_not_with(order, None, recomputes=True))
        rows[is_own, 5] = np.where(np.array(wrong, bool) | (again & (rows[is_own, 4] == 1)), SCHEDULE, VALID)
    return rows


def searched() -> list[Schedule]:
    """Return the schedules of a search: those of PyTorch, with the fewest stages a rank, and with twice as many."""
    found: list[Schedule] = [kind() for kind in SCHEDULES if kind.is_in_torch]
    for kind in LOOPED:
        counts = (kind.least_stages, 2 * kind.least_stages)
        found += [kind(stages_per_rank=one) for one in counts if one in kind.LIMITS["stages_per_rank"]]
    return found


def _why_not(
    schedule: Schedule, ranks: int, micro_batches: int, limits: Mapping[str, int], replicas: Strategy | None,
    combination: Combination, is_torch: bool,
) -> str:  # fmt: skip
    """Say why a schedule does not go with so many ranks and micro-batches, or other strategies; empty if it does."""
    stages = ranks * schedule.stages_per_rank
    if stages > limits.get("pp", stages):
        return (
            f"{schedule.name} with {schedule.stages_per_rank} stages on each of {ranks} ranks: this network allows "
            f"{limits['pp']} stages"
        )
    if why := schedule.why_not(ranks, micro_batches):
        return why
    if why := why_not_with(schedule, replicas, recomputes=False, others=combination.model_parallel):
        return f"{schedule.name} {why}"
    return stops(schedule, ranks, micro_batches, replicas) if is_torch else ""


def stops(schedule: Schedule, ranks: int, micro_batches: int, replicas: Strategy | None) -> str:
    """Say where PyTorch raises an error in a step that it lets one write; empty if it does not.

    Args:
        schedule: of the pipeline.
        ranks: of the pipeline.
        micro_batches: of one replica.
        replicas: the strategy of replicas; None: there is one.
    """
    told = schedule.warnings(ranks, micro_batches)
    if replicas is not None:
        told += replicas.pipeline_warnings(schedule.is_forward_first(ranks, micro_batches))
    return f"{schedule.name}: {told[0]}" if told else ""


@lru_cache(maxsize=64)
def _of_one(schedules: tuple[Schedule, ...], stages: int) -> list[int]:
    """Places of the schedules that order a single micro-batch in different ways, the first of each way.

    Several stages a rank, and divided backward passes, are of no use to one.
    """
    orders = {
        place: tuple(one.actions(rank, stages, 1) for rank in range(stages))
        for place, one in enumerate(schedules)
        if not one.is_looped
    }
    known = list(orders.values())
    return [place for number, (place, order) in enumerate(orders.items()) if known.index(order) == number]
