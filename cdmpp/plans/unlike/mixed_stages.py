"""Mixed stages: what the stages of a pipeline take whose stages stand on unlike devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from cdmpp.plans.overlap import Floats
from cdmpp.plans.plan_stages import PlanStages
from cdmpp.plans.unlike.arrangement import Arrangement, Column
from cdmpp.steps.schedule import Schedule
from cdmpp.steps.strategy import IntArray

_OF_REPLICAS = ("exposed_s", "ending_s", "tied_s", "update_s")
"""Fields in which a stage waits for its slowest replica."""
_MOST = ("once_s", "kernels_high", "exchanges_high", "gradients_s", "parameters_s", "start_up_share")
_LEAST = ("kernels_low", "exchanges_low")


def stage_devices(stages: PlanStages, column: Column) -> tuple[str, ...]:
    """Return the device of each stage; a rank may have several."""
    ranks = stages.count // stages.order.stages_per_rank
    return tuple(column[stages.order.rank_of(stage, ranks)] for stage in range(stages.count))


def mixed(each: Mapping[str, PlanStages], column: Column, arrangement: Arrangement) -> PlanStages:
    """Return the stages of one replica, whose ranks stand on the devices of a column.

    A message takes what it does among nodes of the slower of both devices, and replicas exchange among nodes of the
    slowest of theirs: each of ``each`` is priced among its own. Updates are those of the slowest replica, so that the
    slowest column has the step of all.

    Args:
        each: device -> the stages of the same plans, in the same order, were all of them on it.
        column: of the replica.
        arrangement: of all replicas.
    """
    first = next(iter(each.values()))
    on, ranks = stage_devices(first, column), first.count // first.order.stages_per_rank
    beside = [arrangement.at(first.order.rank_of(stage, ranks)) for stage in range(first.count)]

    def picked(name: str) -> Floats:
        return np.stack([getattr(each[device], name)[:, stage] for stage, device in enumerate(on)], axis=1)

    def slowest(name: str) -> Floats:
        values = [
            np.max([getattr(each[one], name)[:, stage] for one in own], axis=0) for stage, own in enumerate(beside)
        ]
        return np.stack(values, axis=1)

    per_stage = [one.name for one in fields(PlanStages) if np.ndim(getattr(first, one.name)) == 2]
    found: dict[str, Any] = {name: slowest(name) if name in _OF_REPLICAS else picked(name) for name in per_stage}
    for name, of_pass, step in (("sent_s", "forward_s", 1), ("returned_s", "backward_s", -1)):
        own = found[name].copy()
        for stage, device in enumerate(on):
            if 0 <= stage - step < len(on):
                other = on[stage - step]
                own[:, stage] = np.maximum(getattr(each[device], name)[:, stage], getattr(each[other], name)[:, stage])
        if not first.order.is_looped:
            found[of_pass] = found[of_pass] + own - found[name]
        found[name] = own
    tied_s = picked("ahead_s") - sum(_before(each[name].backward_s) * [one == name for one in on] for name in set(on))
    found["ahead_s"] = _before(found["backward_s"]) + tied_s
    used = [each[name] for name in arrangement.devices]
    found |= {name: np.max([getattr(one, name) for one in used], axis=0) for name in _MOST}
    found |= {name: np.min([getattr(one, name) for one in used], axis=0) for name in _LEAST}
    return replace(first, memory=None, **found)


def joint_s(
    columns: Mapping[Column, PlanStages], many: Mapping[Column, IntArray], schedule: Schedule, is_chained: IntArray
) -> Floats:
    """Return the seconds of a step in which replicas wait for each other stage by stage, without what is once a step.

    Replicas of a stage exchange when the last of them ends. Where that ends a backward pass, the stage before waits.

    Args:
        columns: the stages of each different replica, for the same plans.
        many: micro-batches of each.
        schedule: of all plans; ranks have one stage each.
        is_chained: 1 for plans whose stages end a backward pass only when its gradients are averaged.
    """
    first = next(iter(columns.values()))
    begun_s, chained, count = np.zeros(len(first.forward_s)), is_chained.astype(bool), first.count
    step_s = np.zeros_like(begun_s)
    passes_s = {
        column: schedule.passes_s(one.forward_s, one.backward_s, many[column]) for column, one in columns.items()
    }
    for stage in reversed(range(count)):
        ends_s = np.max(
            [
                np.maximum(
                    passes_s[column] - one.ahead_s[:, stage],
                    np.where(chained & (stage < count - 1), begun_s + one.backward_s[:, stage], 0.0),
                )
                for column, one in columns.items()
            ],
            axis=0,
        )
        exposed_s = first.exposed_s[:, stage]
        behind_s = first.exposed_s[:, stage + 1] if stage < count - 1 else 0.0
        begun_s = ends_s + np.where(chained, exposed_s - behind_s, exposed_s)
        step_s = np.maximum(step_s, begun_s + first.update_s[:, stage])
    return step_s


def _before(values: Floats) -> Floats:
    found: Floats = np.cumsum(values, axis=1) - values
    return found
