"""Step terms: the seconds of a step of several plans, and what they hold, from what each of their stages takes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from cdmpp.plans.candidates import Candidates
from cdmpp.plans.overlap import Floats
from cdmpp.plans.plan_stages import PlanStages
from cdmpp.plans.stage_costs import GRADIENTS, HALOS, PARAMETERS, SENDS, SPLIT
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.list_times import StageSeconds
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import Schedule
from cdmpp.steps.strategy import IntArray

FIELDS = (
    "compute_s", "bubble_s", "update_s", "exposed_s", "once_s", "start_up_share", "memory_bytes", "low_s", "high_s",
)  # fmt: skip
"""Fields of ``ClosedForm``; next to them each of ``PARTS`` has its seconds."""


@dataclass(frozen=True)
class _Terms:
    """Each array has a number a plan."""

    compute: Floats
    bubble: Floats
    update: Floats
    replicas: Floats
    """What replicas exchange delays the step by so much."""
    waited: Floats
    """Messages and exchanges of operators in the open."""
    sends: Floats
    halos: Floats
    split: Floats
    start_up: Floats
    memory: Floats

    @classmethod
    def empty(cls, count: int) -> _Terms:
        """Return arrays to be filled."""
        return cls(*(np.full(count, np.nan) for _ in fields(cls)))

    def fill(self, rows: IntArray, other: _Terms) -> None:
        """Set some rows."""
        for one in fields(self):
            getattr(self, one.name)[rows] = getattr(other, one.name)


def step_terms(plans: Candidates, stages: PlanStages) -> dict[str, Floats]:
    """Return an array for each of ``FIELDS`` and ``PARTS``, with a number a plan.

    The stage that takes longest for a micro-batch sets the pace; what its passes exchange is in the open. Gradients and
    update come after the last backward pass of a stage, which it ends before those in front of it do. Where ranks have
    several stages, or divide backward passes, the lists of the schedule say when a pass runs.

    Args:
        plans: those of ``stages``, in the same order.
        stages: what each stage of them takes.
    """
    own = _Terms.empty(len(plans))
    for number, schedule in enumerate(plans.schedules):
        rows = np.flatnonzero(plans.schedule == number)
        if not len(rows):
            continue
        taken = plans.taken(rows), stages.taken(rows)
        if isinstance(schedule, LoopedSchedule):
            own.fill(rows, _of_loops(*taken, schedule))
        else:
            own.fill(rows, _of_chains(*taken, schedule))
    exposed_s = own.waited + own.replicas
    computed_s = own.compute + own.bubble + own.update + stages.once_s
    rest_s = exposed_s - own.halos
    start_up_s = own.replicas * stages.start_up_share + own.start_up
    return {
        "compute_s": own.compute,
        "bubble_s": own.bubble,
        "update_s": own.update,
        "once_s": stages.once_s,
        "exposed_s": exposed_s,
        "low_s": computed_s * stages.kernels_low + exposed_s * stages.exchanges_low,
        "high_s": computed_s * stages.kernels_high + exposed_s * stages.exchanges_high,
        "start_up_share": start_up_s / np.where(rest_s > 0, rest_s, 1.0),
        "memory_bytes": own.memory,
        SENDS: own.sends,
        HALOS: own.halos,
        SPLIT: own.split,
        GRADIENTS: stages.gradients_s,
        PARAMETERS: stages.parameters_s,
    }


def _of_chains(plans: Candidates, stages: PlanStages, schedule: Schedule) -> _Terms:
    """Terms of plans whose ranks have a stage each."""
    many, rows = plans.micro_batches, np.arange(len(plans))
    passes_s = schedule.passes_s(stages.forward_s, stages.backward_s, many)
    both_s = stages.forward_s + stages.backward_s
    slowest = rows, both_s.argmax(axis=1)
    last = rows, (stages.exposed_s + stages.update_s - stages.ahead_s).argmax(axis=1)
    sends, halos, split = (one[slowest] * many for one in (stages.received_s, stages.halos_s, stages.split_s))
    longest_s, waited = many * both_s[slowest], sends + halos + split
    memory = _rank_bytes(plans, stages, schedule).max(axis=1)
    return _Terms(
        longest_s - waited, passes_s - longest_s - stages.ahead_s[last], stages.update_s[last],
        stages.exposed_s[last], waited, sends, halos, split, stages.start_up_s[slowest] * many, memory,
    )  # fmt: skip


def _of_loops(plans: Candidates, stages: PlanStages, schedule: LoopedSchedule) -> _Terms:
    """Terms of plans whose schedule is a list: steps with and without exchanges."""
    ranks, rows, nothing = stages.count // schedule.stages_per_rank, np.arange(len(plans)), np.zeros_like(stages.sent_s)
    many = plans.micro_batches
    free = StageSeconds(
        stages.forward_s, stages.backward_s, stages.inputs_s, stages.weights_s, nothing, nothing, nothing,
        stages.update_s,
    )  # fmt: skip
    sending = replace(free, sent=stages.sent_s, returned=stages.returned_s)
    busy_s = schedule.busy_s(free, ranks, many)
    slowest = rows, busy_s.argmax(axis=1)
    ending = replace(sending, ending=stages.ending_s, update=stages.update_s + stages.tied_s)
    each = StageSeconds.joined([free, sending, ending])
    free_s, sent_s, step_s = np.split(schedule.step_s(each, ranks, np.tile(many, 3)), 3)
    sends, halos, split, start_up, update = (
        schedule.of_ranks(one, ranks)[slowest]
        for one in (stages.received_s, stages.halos_s, stages.split_s, stages.start_up_s, stages.update_s)
    )
    inside_s, waited = many * (halos + split), sent_s - free_s
    memory = _rank_bytes(plans, stages, schedule).max(axis=1)
    start_up_s = np.minimum(many * start_up, inside_s + waited)
    return _Terms(
        busy_s[slowest] - inside_s, free_s - busy_s[slowest] - update, update, step_s - sent_s, inside_s + waited,
        many * sends, many * halos, many * split, start_up_s, memory,
    )  # fmt: skip


def rank_bytes(plans: Candidates, stages: PlanStages) -> Floats:
    """Return what each rank of the pipeline of each plan holds at its peak; (plans, ranks), NaN if unknown."""
    found = np.full((len(plans), stages.count // stages.order.stages_per_rank), np.nan)
    for number, schedule in enumerate(plans.schedules):
        if len(rows := np.flatnonzero(plans.schedule == number)):
            found[rows] = _rank_bytes(plans.taken(rows), stages.taken(rows), schedule)
    return found


def _rank_bytes(plans: Candidates, stages: PlanStages, schedule: Schedule) -> Floats:
    """The same of plans that have one schedule."""
    many, count = plans.micro_batches, stages.count
    if stages.memory is None:
        return np.full((len(plans), count // schedule.stages_per_rank), np.nan)
    if isinstance(schedule, LoopedSchedule):
        return stages.memory.looped_peak_bytes(schedule, many, _kept(plans, count))
    kept, in_flight = np.zeros((2, len(plans), count), np.int64)
    kept[:, -1] = _kept(plans, count)
    in_flight[:] = schedule.in_flight(count, many) if count > 1 else 1
    return stages.memory.peak_bytes(many, in_flight, kept)


def _kept(plans: Candidates, stages: int) -> IntArray:
    """Micro-batches of which the last stage keeps the outputs."""
    found = np.zeros(len(plans), np.int64)
    for place, combination in enumerate(plans.combinations):
        rows = np.flatnonzero(plans.combination == place)
        for pipeline in (one for one in combination.model_parallel if isinstance(one, Pipeline)):
            found[rows] = pipeline.kept(stages - 1, stages, plans.micro_batches[rows])
    return found
