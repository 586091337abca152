"""Question: which way to train this network on these devices. All plans for it, with their costs by closed form."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cdmpp.collectives.topology import Topology
from cdmpp.plans.candidates import VALID, Candidates, candidates
from cdmpp.plans.closed_form import ClosedForm
from cdmpp.plans.combinations import Combination, combinations, usual
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.judge import Judge
from cdmpp.plans.leading import Leading
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.source import StepSource
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.twins import SAME, twins
from cdmpp.platform.progress import log_spent
from cdmpp.steps.schedule import Schedule
from cdmpp.steps.transforms.recompute import can_recompute


@dataclass(frozen=True)
class Judged:
    """All plans for a number of devices, with their costs; arrays have one number a plan."""

    plans: Candidates
    costs: ClosedForm
    fits: NDArray[np.bool_]
    """Which plans can be and fit into memory, without ``twins``."""
    twins: NDArray[np.bool_]
    """Which plans recompute for nothing: one without it takes as long and holds as much."""
    warnings: tuple[str, ...] = ()
    """These were left out of the search, a sentence each."""

    def why_not(self, row: int) -> str:
        """Say why a plan cannot be, with its numbers; empty where it can."""
        if why := self.plans.why_not(row) or self.costs.errors.get(row, ""):
            return why
        if self.twins[row]:
            return SAME
        return "" if self.fits[row] else "needs more memory than a device has"

    def order(self) -> NDArray[np.int64]:
        """Return the rows of the plans that fit, fastest first; of equal ones that which holds less, then the first."""
        rows = np.flatnonzero(self.fits)
        return rows[np.lexsort((rows, self.costs.memory_bytes[rows], self.costs.step_s[rows]))]


@dataclass(frozen=True)
class Question:
    """Which way to train a network on ``ranks`` devices."""

    source: StepSource
    topology: Callable[[int], Topology]
    """Number of ranks -> the links between them; ``CdmppError`` where so many have none."""
    ranks: int
    global_batch: int
    """Examples of one step of all ranks."""
    strategies: tuple[str, ...] = ()
    """Combinations such as ``data+filter``; empty: all that suit the network."""
    memory_limit_bytes: float | None = None
    """Most bytes of a device; None: no limit."""
    is_gpu: bool = False
    """True if the allocator of a GPU counts."""
    warnings: tuple[str, ...] = ()
    """These were assumed where the question said nothing, a sentence each."""
    schedules: tuple[Schedule, ...] = ()
    """Orders of a pipeline's passes that are tried; empty: those of ``candidates.searched``."""
    rules: Callable[[Sequence[str]], tuple[Combination, ...]] = combinations
    """Names of combinations -> the strategies, with the settings of a framework."""
    recomputes: bool | None = None
    """True, False: all modules are recomputed, or none; None: both are tried where there are modules."""
    memory_bytes: Callable[[ParallelDegrees, int, int, str], float] | None = None
    """Degrees, micro-batch, micro-batches and strategy of replicas of a plan -> most bytes of a rank; None: those that
    the kernels of the source hold."""
    input_samples_per_s: float | None = None
    """The input pipeline yields so many examples a second for all devices; None: as many as they need."""
    is_torch: bool = field(default=True, kw_only=True)
    """True if PyTorch runs the plans: those at which it stops are left out, by reason."""
    progress: bool = field(default=False, compare=False, kw_only=True)
    """True if bars are shown on standard error while the network is read and plans are judged."""
    _judged: dict[tuple[int, tuple[str, ...]], Judged] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the combinations that are tried."""
        return self.strategies or usual(self.source.limits())

    @cached_property
    def _judge(self) -> Judge:
        return Judge(self.source, self.is_gpu, self.progress)

    @cached_property
    def _can_recompute(self) -> bool:
        return bool(can_recompute(self.source.work(self._any_batch, ParallelDegrees()).rank))

    @property
    def inputs_s(self) -> float:
        """Return the seconds in which the input pipeline yields the examples of a step."""
        return 0.0 if self.input_samples_per_s is None else self.global_batch / self.input_samples_per_s

    @property
    def _any_batch(self) -> int:
        return min(self.global_batch, 2)

    def topology_of(self, plan: Plan) -> Topology:
        """Return the links between the ranks of a plan."""
        found = self.topology(plan.ranks)
        return found.placed(plan.devices) if plan.devices else found

    def lacks(self, judged: Judged) -> str:  # noqa: ARG002
        """Say what a job on unlike devices lacks where no plan of it fits; empty where devices are equal."""
        return ""

    def judged(self, ranks: int | None = None, names: tuple[str, ...] | None = None) -> Judged:
        """Return all plans for so many devices and some combinations, with their costs; each is worked out once."""
        key = (self.ranks if ranks is None else ranks, self.names if names is None else names)
        if key not in self._judged:
            begun_s, plans = time.process_time(), self._candidates(*key)
            self._judged[key] = self._judged_as(plans, self._judge.closed_form(plans, self.topology(key[0])))
            log_spent(f"{len(plans):,} plans for {key[0]:,} devices judged", len(plans), begun_s)
        return self._judged[key]

    def leading(self, ranks: int, names: tuple[str, ...]) -> Judged:
        """Return all plans for so many devices and some combinations, of which those are judged that may be fastest.

        The fastest of each combination is that of ``judged``; of others the costs may be missing.
        """
        if (ranks, names) in self._judged or self.memory_bytes is not None:
            return self.judged(ranks, names)
        begun_s, plans = time.process_time(), self._candidates(ranks, names)
        costs = self._judge.closed_form(plans, self.topology(ranks), Leading(self.memory_limit_bytes, self.inputs_s))
        known = np.count_nonzero(~np.isnan(costs.step_s))
        log_spent(f"{len(plans):,} plans for {ranks:,} devices bounded, {known:,} judged", len(plans), begun_s)
        return self._judged_as(plans, costs)

    def at_batches(self, global_batches: Sequence[int]) -> tuple[Question, ...]:
        """Ask the same at several global batches, whose plans are judged together.

        What a division of the model costs at a micro-batch is the same at each, so that many cost little more than one.

        Args:
            global_batches: examples of one step of all ranks, each a question.

        Returns:
            A question for each; ``judged()`` of it is known.
        """
        each = tuple(replace(self, global_batch=one, _judged={}) for one in global_batches)
        found = [one._candidates(self.ranks, self.names) for one in each]
        costs = self._judge.closed_form(Candidates.joined(found), self.topology(self.ranks)) if found else None
        begin = 0
        for one, plans in zip(each, found, strict=True):
            assert costs is not None
            one._judged[self.ranks, self.names] = one._judged_as(plans, costs.part(begin, begin + len(plans)))
            begin += len(plans)
        return each

    def _candidates(self, ranks: int, names: tuple[str, ...]) -> Candidates:
        limits = self.source.limits()
        schedules = self.schedules or None
        can_recompute = self.recomputes is not False and self._can_recompute
        every = candidates(self.rules(names), ranks, self.global_batch, limits, schedules, can_recompute, self.is_torch)
        found = replace(every, refusal=self.source.refusal)
        return found.taken((found.recompute == 1) | (found.reason != VALID)) if self.recomputes else found

    def _judged_as(self, plans: Candidates, costs: ClosedForm) -> Judged:
        """Plans of the question with these costs."""
        costs = replace(costs, inputs_s=self.inputs_s)
        if self.memory_bytes is not None:
            costs = replace(costs, memory_bytes=self._known_bytes(plans, costs))
        fits = ~np.isnan(costs.step_s)
        if self.memory_limit_bytes is not None:
            fits &= ~(costs.memory_bytes > self.memory_limit_bytes)  # unknown memory is no reason
        same = twins(plans, costs)
        return Judged(plans, costs, fits & ~same, same)

    def _known_bytes(self, plans: Candidates, costs: ClosedForm) -> NDArray[np.float64]:
        """Return what the framework of the question holds under each plan that can be."""
        found, known = np.full(len(plans), np.nan), self.memory_bytes
        assert known is not None
        for row in np.flatnonzero(~np.isnan(costs.step_s)).tolist():
            strategy = plans.combinations[int(plans.combination[row])].strategy.name
            sizes = int(plans.micro_batch[row]), int(plans.micro_batches[row])
            found[row] = known(plans.degrees_of(row), *sizes, strategy)
        return found

    def plan(self, plans: Candidates, row: int) -> Plan:
        """Make the plan of one row."""
        combination, many = plans.combinations[int(plans.combination[row])], int(plans.micro_batches[row])
        degrees = plans.degrees_of(row)
        modules: tuple[str, ...] = ()
        if plans.recompute[row]:
            rank = self.source.work(int(plans.micro_batch[row]), degrees, combination.model_parallel).rank
            modules = tuple(one.name for one in can_recompute(rank))
        return plan_of(combination, degrees, many, plans.schedules[int(plans.schedule[row])], modules)


def plan_of(
    combination: Combination, degrees: ParallelDegrees, many: int, schedule: Schedule, recomputed: tuple[str, ...]
) -> Plan:
    """Make a plan; ``many`` are micro-batches where there is a pipeline, else gradient accumulation steps."""
    piped = degrees.pp > 1
    count = schedule.stages_per_rank if schedule.is_looped else None
    dividing = tuple(
        replace(one, schedule=schedule.name, micro_batches=many, stages_per_rank=count)
        if isinstance(one, Pipeline)
        else one
        for one in combination.model_parallel
    )
    return Plan(combination.strategy, degrees, 1 if piped else many, recomputed, model_parallel=dividing)
