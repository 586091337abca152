"""Step terms: the seconds of a step of several plans, and what they hold, from what each of their stages takes."""

from __future__ import annotations

import numpy as np

from cdmpp.plans.candidates import Candidates
from cdmpp.plans.overlap import Floats
from cdmpp.plans.plan_stages import PlanStages
from cdmpp.plans.stage_costs import GRADIENTS, HALOS, PARAMETERS, SENDS, SPLIT
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.strategy import IntArray

FIELDS = (
    "compute_s", "bubble_s", "update_s", "exposed_s", "once_s", "start_up_share", "memory_bytes", "low_s", "high_s",
)  # fmt: skip
"""Fields of ``ClosedForm``; next to them each of ``PARTS`` has its seconds."""


def step_terms(plans: Candidates, stages: PlanStages) -> dict[str, Floats]:
    """Return an array for each of ``FIELDS`` and ``PARTS``, with a number a plan.

    The stage that takes longest for a micro-batch sets the pace; what its passes exchange is in the open. Gradients and
    update come after the last backward pass of a stage, which it ends before those in front of it do.

    Args:
        plans: those of ``stages``, in the same order.
        stages: what each stage of them takes.
    """
    many, rows = plans.micro_batches, np.arange(len(plans))
    passes_s, in_flight, kept = _passes(plans, stages)
    both_s = stages.forward_s + stages.backward_s
    slowest = rows, both_s.argmax(axis=1)
    last = rows, (stages.exposed_s + stages.update_s - stages.ahead_s).argmax(axis=1)
    parts = {
        SENDS: stages.received_s[slowest] * many,
        HALOS: stages.halos_s[slowest] * many,
        SPLIT: stages.split_s[slowest] * many,
        GRADIENTS: stages.gradients_s,
        PARAMETERS: stages.parameters_s,
    }
    open_s = parts[SENDS] + parts[HALOS] + parts[SPLIT]
    longest_s = many * both_s[slowest]
    found = {
        "compute_s": longest_s - open_s,
        "bubble_s": passes_s - longest_s - stages.ahead_s[last],
        "update_s": stages.update_s[last],
        "once_s": stages.once_s,
    }
    computed_s = sum(found.values(), np.zeros(len(plans)))
    replicas_s = stages.exposed_s[last]
    exposed_s = found["exposed_s"] = open_s + replicas_s
    found["low_s"] = computed_s * stages.kernels_low + exposed_s * stages.exchanges_low
    found["high_s"] = computed_s * stages.kernels_high + exposed_s * stages.exchanges_high
    rest_s = exposed_s - parts[HALOS]
    start_up_s = replicas_s * stages.start_up_share + stages.start_up_s[slowest] * many
    found["start_up_share"] = start_up_s / np.where(rest_s > 0, rest_s, 1.0)
    unknown = np.full(len(plans), np.nan)
    found["memory_bytes"] = unknown if stages.memory is None else stages.memory.peak_bytes(many, in_flight, kept)
    return found | parts


def _passes(plans: Candidates, stages: PlanStages) -> tuple[Floats, IntArray, IntArray]:
    """Seconds of all passes; micro-batches in flight, and those of which a stage keeps the outputs, on each stage."""
    many, shape = plans.micro_batches, (len(plans), stages.count)
    passes_s, in_flight, kept = np.empty(len(plans)), np.ones(shape, np.int64), np.zeros(shape, np.int64)
    for number, schedule in enumerate(plans.schedules):
        rows = np.flatnonzero(plans.schedule == number)
        passes_s[rows] = schedule.passes_s(stages.forward_s[rows], stages.backward_s[rows], many[rows])
        if stages.count > 1:
            in_flight[rows] = schedule.in_flight(stages.count, many[rows])
    for place, combination in enumerate(plans.combinations):
        rows = np.flatnonzero(plans.combination == place)
        for pipeline in (one for one in combination.model_parallel if isinstance(one, Pipeline)):
            for stage in range(stages.count):
                kept[rows, stage] = pipeline.kept(stage, stages.count, many[rows])
    return passes_s, in_flight, kept
