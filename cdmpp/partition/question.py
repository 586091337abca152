"""PartitionQuestion: where to cut a network over some devices, under each of several schedules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from cdmpp.errors import InfeasiblePlanError, UsageError
from cdmpp.partition.chain import Chain, Part, ideal_s
from cdmpp.partition.closed_form import closed_form_s
from cdmpp.partition.devices import StageDevice
from cdmpp.partition.graph import PartitionGraph
from cdmpp.partition.outcome import Outcome, replayed
from cdmpp.partition.problem import PartitionProblem
from cdmpp.partition.solve import SECONDS, Partition, leanest, missing_memory, solve
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.platform.limits import Limits, check_all, check_fields
from cdmpp.steps.schedule import Schedule
from cdmpp.units import percent, quantity


@dataclass(frozen=True)
class PartitionQuestion:
    """Every schedule gets the cuts that are best under it."""

    LIMITS: ClassVar = {
        "micro_batch": Limits(1, 2**31, "examples"), "micro_batches": PartitionProblem.LIMITS["micro_batches"],
        "states": PartitionProblem.LIMITS["states"], "seconds": SECONDS,
    }  # fmt: skip

    graph: PartitionGraph
    devices: tuple[StageDevice, ...]
    micro_batch: int
    """Examples of one forward pass."""
    micro_batches: int = 8
    """Micro-batches of one step."""
    schedules: tuple[Schedule, ...] = field(default_factory=lambda: tuple(kind() for kind in SCHEDULES))
    overlap: bool = True
    replicas: bool = False
    keep_tied: bool = False
    """True if all readers of a parameter must be on one stage; else each stage that has some holds a copy."""
    states: float = 2.0
    seconds: float = 30.0
    """Seconds that integer programming may take, for all schedules."""
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, "partition.")
        check_all("partition.schedules", self.schedules, Schedule)
        if self.devices and not any(one.seconds.any() for one in self.devices):
            raise UsageError("no layer takes any time on any device: give seconds of the passes of its layers")

    @property
    def examples(self) -> int:
        """Return the examples of one step."""
        return self.micro_batch * self.micro_batches

    def problem(self, schedule: Schedule, recompute: bool = False) -> PartitionProblem:
        """Return the search under one schedule; ``UsageError`` where the devices are too many to cut for."""
        graph = self.graph.tied_together() if self.keep_tied else self.graph
        return PartitionProblem(
            graph, self.devices, schedule, self.micro_batches, self.overlap, recompute, self.states, self.replicas
        )

    @cached_property
    def alone(self) -> Chain:
        """The whole network on the device on which it is fastest, whether or not it fits."""
        problem = self.problem(SCHEDULES["sequential"]())
        every = range(self.graph.count)
        chains = [Chain(problem, (Part(tuple(every), kind),)) for kind in range(len(problem.kinds))]
        return min(chains, key=lambda one: (not one.fits, one.slowest_s))


@dataclass(frozen=True, eq=False)
class ScheduledPartition:
    """The best cuts under one schedule, replayed."""

    partition: Partition
    """The cuts whose slowest stage is fastest."""
    outcome: Outcome
    closed_s: float
    """Seconds of a step by closed form."""

    @property
    def chain(self) -> Chain:
        """The stages: those of ``partition``, or of cuts with fewer messages where their replay is faster."""
        return self.outcome.chain

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        return self.chain.problem.schedule

    @property
    def step_s(self) -> float:
        """Return the seconds of a step by replay."""
        return self.outcome.step_s

    @property
    def staleness(self) -> int:
        """Return the staleness of the stage where it is most."""
        return max(one.staleness for one in self.chain.costs)

    @property
    def peak_bytes(self) -> float:
        """Return the bytes of the device that holds most."""
        return max(one.bytes for one in self.chain.costs)


@dataclass(frozen=True, eq=False)
class PartitionResult:
    """The answer to a question."""

    question: PartitionQuestion
    ranked: tuple[ScheduledPartition, ...]
    """Fastest first, those with two workers a device last."""
    refused: Mapping[str, str]
    """Name of a schedule -> why it cannot be."""

    @property
    def best(self) -> ScheduledPartition:
        """Return the fastest with one worker a device, where there is one."""
        return self.ranked[0]

    @property
    def fresh(self) -> ScheduledPartition | None:
        """Return the fastest whose gradients are all those of the weights that they change; None where none is."""
        return next((one for one in self.ranked if not one.staleness), None)

    @property
    def alone_s(self) -> float:
        """Return the seconds of a step on one device by itself: the fastest on which it fits, else the fastest."""
        alone = self.question.alone
        return self.question.micro_batches * alone.slowest_s

    def speed_up(self, one: ScheduledPartition) -> float:
        """Return how many times as fast as one device by itself a partition is."""
        return self.alone_s / one.step_s if one.step_s else math.inf

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return reasons to doubt the answer, a sentence each."""
        found = list(self.question.warnings)
        for one in self.ranked:
            if names := one.chain.split_tied():
                found.append(
                    f"parameter {names[0]} is read on several stages under {one.schedule.name}: each holds a copy, and "
                    "their gradients are summed at each update"
                )
        for one in self.ranked:
            searched, every = one.partition.orders
            if searched < every:
                found.append(
                    f"cuts under {one.schedule.name} are the best of {searched:,} of {every:,} orders of the devices"
                )
        unproven = [one.schedule.name for one in self.ranked if not one.partition.is_proven]
        if unproven:
            gap = max(one.partition.gap for one in self.ranked)
            found.append(
                f"cuts under {', '.join(unproven)} are not proven: the best may be up to {percent(gap)} faster"
            )
        return tuple(dict.fromkeys(found))


def answer(question: PartitionQuestion) -> PartitionResult:
    """Cut the network for each schedule and replay it.

    Where memory allows no cut, or only slow ones, a stage keeps its inputs only and runs its forward pass again.

    Raises:
        InfeasiblePlanError: nothing fits under any schedule; it says what the leanest lacks.
        UsageError: more devices than the network can be cut for.
    """
    found, refused = list[ScheduledPartition](), dict[str, str]()
    leanest_of, each_s = list[Chain](), question.seconds / len(question.schedules)
    for schedule in question.schedules:
        partition = _cut(question, schedule, each_s)
        if partition is None:
            leanest_of.append(leanest(question.problem(schedule, recompute=True)))
            refused[schedule.name] = f"{quantity(leanest_of[-1].missing_bytes, 'B')} of memory are missing"
        elif why := schedule.why_not(len(partition.chain.parts), question.micro_batches):
            refused[schedule.name] = why
        else:
            chains = [partition.chain, *_fewer_messages(partition.chain, each_s)]
            outcome = min(map(replayed, chains), key=lambda one: one.step_s)
            found.append(ScheduledPartition(partition, outcome, closed_form_s(outcome.chain)))
    if not found and leanest_of:
        raise InfeasiblePlanError(missing_memory(min(leanest_of, key=lambda one: one.missing_bytes)))
    if not found:
        raise UsageError("; ".join(refused.values()))
    ranked = sorted(
        found, key=lambda one: (one.schedule.passes_side_by_side, one.step_s, one.staleness, one.peak_bytes)
    )
    return PartitionResult(question, tuple(ranked), refused)


def _cut(question: PartitionQuestion, schedule: Schedule, seconds: float) -> Partition | None:
    """The best cuts under a schedule, with forward passes that run again where that is faster or nothing else fits."""
    plain, again = question.problem(schedule), question.problem(schedule, recompute=True)
    partition = _solved(plain, seconds)
    is_limited = any(math.isfinite(one.memory_bytes) for one in question.devices)
    if partition is None or (is_limited and partition.chain.slowest_s > ideal_s(again)):
        other = _solved(again, seconds)
        if partition is None or (other is not None and other.chain.slowest_s < partition.chain.slowest_s):
            partition = other
    return partition


def _fewer_messages(chain: Chain, seconds: float) -> Iterator[Chain]:
    """Cuts as if no message hid behind computing: with few micro-batches under way stages wait for hidden ones, too."""
    if chain.problem.overlap and len(chain.parts) > 1:
        other = _solved(replace(chain.problem, overlap=False), seconds)
        if other is not None and other.chain.parts != chain.parts:
            yield Chain(chain.problem, other.chain.parts)


def _solved(problem: PartitionProblem, seconds: float) -> Partition | None:
    try:
        return solve(problem, seconds)
    except InfeasiblePlanError:
        return None
