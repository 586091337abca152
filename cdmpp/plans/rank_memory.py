"""Memory of the ranks of a job under a plan that was lowered, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from cdmpp.plans.allocator import CONTEXT, PARTLY_FILLED
from cdmpp.plans.communicators import communicator_bytes
from cdmpp.plans.cut import stages_of
from cdmpp.plans.divided_backward import DividedBackward
from cdmpp.plans.held_stages import held_by
from cdmpp.plans.looped_memory import looped_parts
from cdmpp.plans.lower import Lowered
from cdmpp.plans.memory import Memory, MemoryParts
from cdmpp.plans.placement import micro_batches_of, pipeline_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.stage_bytes import stacked
from cdmpp.plans.stages import Stage
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.looped_schedule import LoopedSchedule


def peak_of(work: RankWork, plan: Plan, lowered: Lowered, is_gpu: bool) -> int | None:
    """Return the most bytes of a rank of the heaviest stage; None if the source knows no memory."""
    found = heaviest(work, plan, lowered, is_gpu)
    return None if found is None else found[1].peak_bytes


def parts_of(work: RankWork, plan: Plan, lowered: Lowered, is_gpu: bool, device: str = "") -> list[MemoryParts]:
    """Return what each rank of a pipeline holds at its peak; nothing if the source knows no memory.

    ``device``: of the work; empty where the plan names none.
    """
    if work.memory is None:
        return []
    return parts_of_stages(plan, held_stages(work, plan, lowered.by_device.get(device, lowered.stages), is_gpu))


def parts_of_stages(plan: Plan, found: Sequence[HeldStage]) -> list[MemoryParts]:
    """Return what each rank of a pipeline of these stages holds at its peak."""
    pipeline, many, count = pipeline_of(plan), micro_batches_of(plan), len(found)
    order = None if pipeline is None or count == 1 else pipeline.order
    if isinstance(order, LoopedSchedule):
        ranks, kept = plan.degrees.pp, 0 if pipeline is None else pipeline.kept(count - 1, count, many)
        return _looped(order, ranks, many, kept, found)
    in_flight = [1 if order is None else order.live_micro_batches(number, count, many) for number in range(count)]
    kepts = [0 if pipeline is None else pipeline.kept(number, count, many) for number in range(count)]
    return [
        one.memory.parts(one.plan, many if count > 1 else 1, alive, one.received, one.returned, kept)
        for one, alive, kept in zip(found, in_flight, kepts, strict=True)
    ]


def held_stages(work: RankWork, plan: Plan, made: Sequence[Stage], is_gpu: bool) -> list[HeldStage]:
    """Return the memory of each stage.

    Args:
        work: of a rank, whose memory is known.
        plan: all settings.
        made: its stages, of the same work.
        is_gpu: whether the allocator of a GPU counts.
    """
    assert work.memory is not None
    pipeline = pipeline_of(plan)
    order, found = None if pipeline is None or len(made) == 1 else pipeline.order, list[HeldStage]()
    stages = stages_of(work.rank, [one.places[0] for one in made[1:]])
    for number, stage in enumerate(stages):
        held = held_by(work.memory, work.rank, stage, number)
        divides = order is not None and order.divides_backward
        pending = DividedBackward(stage).pending if divides else ()
        own = {one.name for one in stage.rank.modules}
        received = sum(size for one in stages[max(number - 1, 0) : number] for size in one.sent_bytes)
        received += sum(size for one in stages[number + 1 : number + 2] for size in one.returned_bytes)
        found.append(
            HeldStage(
                Memory(held, stage.rank, is_gpu, stage.outputs, pending),
                replace(plan, recompute=tuple(name for name in plan.recompute if name in own)),
                received,
                sum(stage.returned_bytes),
                stage.places,
            )
        )
    return found


@dataclass(frozen=True)
class HeldStage:
    """These are the bytes that one stage holds."""

    memory: Memory
    plan: Plan
    """With the modules of the stage alone among those that are recomputed."""
    received: int
    """Bytes that its neighbours send for one micro-batch."""
    returned: int
    """Bytes of gradients that it sends to the stage before."""
    places: tuple[int, ...]
    """Places of its ops in the whole rank."""


def _looped(order: LoopedSchedule, ranks: int, many: int, kept: int, every: Sequence[HeldStage]) -> list[MemoryParts]:
    """Return the bytes that each rank of several stages holds."""
    batches, is_gpu = many * every[0].plan.gradient_accumulation_steps, every[0].memory.is_gpu
    each = [one.memory.rank_bytes(one.plan, batches, is_piped=True) for one in every]
    held, share = stacked([stacked([one.memory.held for one in every])]), stacked([stacked(each)])
    sent = np.array([[one.received for one in every]]), np.array([[one.returned for one in every]])

    def parts(is_taken: bool) -> MemoryParts:
        live = stacked([stacked([one.memory.live(one.plan.recompute, is_taken) for one in every])])
        return looped_parts(order, ranks, np.array([many]), np.array([kept]), held, share, live, *sent)

    found = parts(is_taken=False)
    if is_gpu:
        more = np.array([[one.memory.rounded_bytes(size) for one, size in zip(every, each, strict=True)]])
        added = order.of_ranks(more, ranks) - (order.stages_per_rank - 1) * PARTLY_FILLED
        rounding = parts(is_taken=True).peak_bytes - found.peak_bytes + added
        nccl = communicator_bytes(every[0].plan.degrees.beyond_one())
        found = replace(found, rounding=rounding, context=CONTEXT, communicators=nccl)
    rows = [np.broadcast_to(getattr(found, one.name), (1, ranks))[0].astype(np.int64) for one in fields(found)]
    return [MemoryParts(*own) for own in np.transpose(rows).tolist()]


def heaviest(work: RankWork, plan: Plan, lowered: Lowered, is_gpu: bool) -> tuple[int, MemoryParts] | None:
    """Return the first rank of the stage whose ranks hold most, and what it holds; None if memory is unknown."""
    found = heaviest_on(work, plan, lowered, lambda _: is_gpu)
    return max(found.values(), key=lambda one: one[1].peak_bytes) if found else None


def heaviest_on(
    work: RankWork, plan: Plan, lowered: Lowered, is_gpu: Callable[[str], bool]
) -> dict[str, tuple[int, MemoryParts]]:
    """Return for each device of a plan the first of its ranks that hold most, and what it holds.

    Args:
        work: of a rank, with that on each device.
        plan: all settings.
        lowered: the same plan.
        is_gpu: device -> whether the allocator of a GPU counts; the device of a plan without devices has no name.

    Returns:
        Device -> rank and parts; nothing if the source knows no memory.
    """
    found = dict[str, tuple[int, MemoryParts]]()
    for (device, _, _), (rank, parts) in _by_kind(work, plan, lowered, is_gpu).items():
        if device not in found or parts.peak_bytes > found[device][1].peak_bytes:
            found[device] = rank, parts
    return found


def held_by_kind(
    work: RankWork, plan: Plan, lowered: Lowered, is_gpu: Callable[[str], bool]
) -> dict[tuple[str, int, int], int]:
    """Return the peak bytes of ranks by device, share of the batch (0: equal ones) and place along the pipeline."""
    return {kind: parts.peak_bytes for kind, (_, parts) in _by_kind(work, plan, lowered, is_gpu).items()}


def _by_kind(
    work: RankWork, plan: Plan, lowered: Lowered, is_gpu: Callable[[str], bool]
) -> dict[tuple[str, int, int], tuple[int, MemoryParts]]:
    mesh, firsts = lowered.mesh, dict[tuple[str, int, int], int]()
    for rank in range(plan.ranks):
        device, share = plan.devices[rank] if plan.devices else "", plan.shares and plan.shares[mesh.replica(rank)]
        firsts.setdefault((device, share or 0, mesh.place(rank, "pp")), rank)
    found, known = dict[tuple[str, int, int], tuple[int, MemoryParts]](), dict[tuple[str, int], list[MemoryParts]]()
    for (device, share, place), rank in firsts.items():
        if (device, share) not in known:
            own = with_share(plan, share) if share else plan
            known[device, share] = parts_of(work.on(device), own, lowered, is_gpu(device), device)
        if known[device, share]:
            found[device, share, place] = rank, known[device, share][place]
    return found


def with_share(plan: Plan, share: int) -> Plan:
    """Return the plan as it is for a replica with so many micro-batches."""
    if micro_batches_of(plan) == 1:
        return replace(plan, shares=(), gradient_accumulation_steps=share)
    dividing = (replace(one, micro_batches=share) if isinstance(one, Pipeline) else one for one in plan.model_parallel)
    return replace(plan, shares=(), model_parallel=tuple(dividing))
