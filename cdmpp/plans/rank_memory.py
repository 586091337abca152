"""Memory of the ranks of a job under a plan that was lowered, stage by stage."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.plans.cut import stages_of
from cdmpp.plans.held_stages import held_by
from cdmpp.plans.lower import Lowered
from cdmpp.plans.memory import Memory, MemoryParts
from cdmpp.plans.placement import micro_batches_of, pipeline_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.source import RankWork


def peak_of(work: RankWork, plan: Plan, lowered: Lowered, is_gpu: bool) -> int | None:
    """Return the most bytes of a rank of the heaviest stage; None if the source knows no memory."""
    return max((one.peak_bytes for one in parts_of(work, plan, lowered, is_gpu)), default=None)


def parts_of(work: RankWork, plan: Plan, lowered: Lowered, is_gpu: bool) -> list[MemoryParts]:
    """Return what a rank of each stage holds at its peak; nothing if the source knows no memory."""
    if work.memory is None:
        return []
    pipeline, many, count = pipeline_of(plan), micro_batches_of(plan), len(lowered.stages)
    found = []
    stages = stages_of(work.rank, [one.places[0] for one in lowered.stages[1:]])
    for number, stage in enumerate(stages):
        in_flight = 1 if pipeline is None else pipeline.order.live_micro_batches(number, count, many)
        memory = Memory(held_by(work.memory, work.rank, stage, number), stage.rank, is_gpu, stage.outputs)
        own = {one.name for one in stage.rank.modules}
        local = replace(plan, recompute=tuple(name for name in plan.recompute if name in own))
        received = sum(size for one in stages[max(number - 1, 0) : number] for size in one.sent_bytes)
        received += sum(size for one in stages[number + 1 : number + 2] for size in one.returned_bytes)
        kept = 0 if pipeline is None else pipeline.kept(number, count, many)
        returned = sum(stage.returned_bytes)
        found.append(memory.parts(local, many if count > 1 else 1, in_flight, received, returned, kept))
    return found


def heaviest(work: RankWork, plan: Plan, lowered: Lowered, is_gpu: bool) -> tuple[int, MemoryParts] | None:
    """Return the first rank of the stage whose ranks hold most, and what it holds; None if memory is unknown."""
    stages = parts_of(work, plan, lowered, is_gpu)
    if not stages:
        return None
    number = max(range(len(stages)), key=lambda stage: stages[stage].peak_bytes)
    return lowered.mesh.group_of(0, ("pp",))[number], stages[number]
