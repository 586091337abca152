"""Activations of the ranks of a job, by the kind of the op that wrote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdmpp.plans.live_bytes import LiveBytes
from cdmpp.plans.memory import MemoryParts
from cdmpp.plans.op_kinds import kinds_of
from cdmpp.plans.placement import micro_batches_of, pipeline_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.rank_memory import HeldStage
from cdmpp.plans.sources.source import RankWork
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import BACKWARD, FORWARD, WEIGHTS, Action

Kinds = Mapping[str, LiveBytes]
"""Kind of op -> its part of what is alive."""


def activations_of(
    work: RankWork, plan: Plan, stages: Sequence[HeldStage], parts: Sequence[MemoryParts]
) -> list[dict[str, int]]:
    """Divide the activations of each rank of a pipeline, as ``kinds_of`` names the ops.

    Where gradients and results share a bound, the shares of the kinds are those of the passes. Behind the passes there
    are outputs only.

    Args:
        work: of a rank.
        plan: all settings.
        stages: the memory of its stages.
        parts: what each rank holds.

    Returns:
        Kind -> bytes of ``MemoryParts.activations``, most first, of each rank.
    """
    kinds = kinds_of(work.rank)
    each = [one.memory.by_kind(one.plan.recompute, [kinds[place] for place in one.places]) for one in stages]
    return shared_activations(plan, each, parts)


def shared_activations(plan: Plan, each: Sequence[Kinds], parts: Sequence[MemoryParts]) -> list[dict[str, int]]:
    """Return what ``activations_of`` does; ``each``: the kinds of what is alive on each stage."""
    pipeline, many, ranks = pipeline_of(plan), micro_batches_of(plan), plan.degrees.pp
    order = None if pipeline is None or len(each) == 1 else pipeline.order
    kept = 0 if pipeline is None else pipeline.kept(len(each) - 1, len(each), many)
    if isinstance(order, LoopedSchedule):
        found = [
            _followed(
                {stage: each[stage] for stage in order.stages_of(rank, ranks)},
                order.actions(rank, ranks, many),
                len(each) - 1,
                kept,
            )
            for rank in range(ranks)
        ]
    else:
        count = len(each)
        alive = [1 if order is None else order.live_micro_batches(number, count, many) for number in range(count)]
        kepts = [0] * (count - 1) + [kept]
        totals = [one.activations for one in parts]
        found = [_of_stage(*own) for own in zip(each, alive, kepts, totals, strict=True)]
    for rank, one in enumerate(parts):
        last = len(each) - 1 if order is None else order.rank_of(len(each) - 1, ranks)
        outputs = {kind: kept * own.outputs for kind, own in each[-1].items()}
        # behind the passes, copied into one or not
        if kept and rank == last and int(one.activations) in (sum(outputs.values()), 2 * sum(outputs.values())):
            found[rank] = outputs
    return [_shared(own, int(one.activations)) for own, one in zip(found, parts, strict=True)]


def _of_stage(own: Kinds, in_flight: int, kept: int, total: int) -> dict[str, float]:
    passes, with_gradients, saved, outputs = (sum(getattr(one, name) for one in own.values()) for name in _NAMES)
    over = max(kept - in_flight, 0)
    is_kept = with_gradients < passes and total <= (in_flight - 1) * saved + over * outputs + with_gradients
    last = "with_gradients" if is_kept else "passes"
    return {kind: (in_flight - 1) * one.saved + over * one.outputs + getattr(one, last) for kind, one in own.items()}


_NAMES = ("passes", "with_gradients", "saved", "outputs")


def _followed(stages: Mapping[int, Kinds], actions: Sequence[Action], final: int, kept: int) -> dict[str, float]:
    """Follow the actions of a rank of several stages to the moment with most results.

    ``kept``: micro-batches whose outputs stage ``final`` keeps.
    """
    totals = {
        stage: [sum(getattr(one, name) for one in own.values()) for name in _NAMES] for stage, own in stages.items()
    }
    divides = any(one.kind == WEIGHTS for one in actions)
    saved, most, best = dict.fromkeys(stages, 0), -1.0, (dict.fromkeys(stages, 0), -1, 0)
    for one in actions:
        others = saved | {one.stage: saved[one.stage] - (one.kind != FORWARD)}
        now = totals[one.stage][0] + sum(count * totals[stage][2] for stage, count in others.items())
        over = max(kept - others[final] - (one.stage == final), 0) if final in stages else 0
        now += over * totals[final][3] if over else 0
        if now > most:
            most, best = now, (others, one.stage, over)
        if one.kind == FORWARD:
            saved[one.stage] += 1
        elif one.kind == (WEIGHTS if divides else BACKWARD):
            saved[one.stage] -= 1
    counts, running, over = best
    found = dict[str, float]()
    for stage, own in stages.items():
        for kind, part in own.items():
            more = part.passes if stage == running else 0
            more += over * part.outputs if stage == final else 0
            found[kind] = found.get(kind, 0.0) + counts[stage] * part.saved + more
    return found


def _shared(found: Mapping[str, float], total: int) -> dict[str, int]:
    """Share a total as the kinds have it, most first; what rounding leaves counts with the first."""
    whole = sum(found.values()) or 1
    sizes = {kind: round(total * size / whole) for kind, size in found.items()}
    sizes = dict(sorted(((kind, size) for kind, size in sizes.items() if size), key=lambda pair: -pair[1]))
    if sizes:
        sizes[next(iter(sizes))] += total - sum(sizes.values())
    return sizes
