"""The answer about memory for a decoder that a framework runs with kernels of its own, from sizes alone."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.errors import CdmppError, UsageError
from cdmpp.plans.allocator import CONTEXT
from cdmpp.plans.communicators import communicator_bytes
from cdmpp.plans.framework_memory import FrameworkJob, framework_kinds, framework_parts
from cdmpp.plans.frameworks import Framework
from cdmpp.plans.memory_answer import MemoryAnswer, RankAnswer, stages_of_ranks
from cdmpp.plans.placement import micro_batch_of, micro_batches_of, pipeline_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.rank_activations import shared_activations
from cdmpp.plans.reserved_memory import reserved_bytes
from cdmpp.plans.transformer_shape import TransformerShape

_STRATEGIES = ("ddp", "zero")
_SCHEDULES = ("1f1b", "interleaved1f1b")
_DEGREES = ("dp_replicate", "tp", "pp", "cp")


def framework_answer(
    shape: TransformerShape, framework: Framework, plan: Plan, global_batch: int, is_gpu: bool,
    limit_bytes: float | None = None, network: str = "", warnings: tuple[str, ...] = (),
) -> MemoryAnswer:  # fmt: skip
    """Return what each rank holds; other arguments as of ``memory_answer``.

    Args:
        shape: sizes of the decoder.
        framework: that runs it; whether states are divided is that of the plan (``zero1``).

    Raises:
        CdmppError: a plan that the framework does not have, or ranks that do not divide the model.
    """
    _check(plan)
    micro_batch = micro_batch_of(plan, global_batch)
    pipeline, degrees = pipeline_of(plan), plan.degrees
    does_shard = plan.strategy.name == "zero"
    job = FrameworkJob(
        shape, replace(framework, shards_state=does_shard), micro_batch,
        micro_batches_of(plan) * plan.gradient_accumulation_steps, degrees.tp, degrees.pp, degrees.cp,
        degrees.dp_replicate * degrees.cp if does_shard else 1,
        1 if pipeline is None or degrees.pp == 1 else pipeline.order.stages_per_rank,
        replicas=degrees.dp_replicate * degrees.cp,
    )  # fmt: skip
    parts = framework_parts(job)
    if is_gpu:
        nccl = communicator_bytes(degrees.beyond_one())
        left = None if limit_bytes is None else int(limit_bytes) - CONTEXT - nccl
        gaps = [max(0, _reserved(job, rank, left) - one.peak_bytes) for rank, one in enumerate(parts)]
        parts = [
            replace(one, rounding=gap, context=CONTEXT, communicators=nccl)
            for one, gap in zip(parts, gaps, strict=True)
        ]  # fmt: skip
    kinds, blocks = shared_activations(plan, framework_kinds(job), parts), job.stages
    ranks = tuple(
        RankAnswer(
            place, numbers, tuple(f"{blocks[one].blocks} blocks" for one in numbers), in_flight, own, kind,
        )
        for place, ((numbers, in_flight), own, kind) in enumerate(zip(stages_of_ranks(plan), parts, kinds, strict=True))
    )  # fmt: skip
    told = f"as {framework.name} runs it, by its settings in cdmpp.plans.frameworks: no kernel was read"
    return MemoryAnswer(network, plan, micro_batch, global_batch, ranks, limit_bytes, (*warnings, told))


def _reserved(job: FrameworkJob, rank: int, limit_bytes: int | None) -> int:
    """Return what the allocator reserves; where that does not fit, what it would on a device with more."""
    try:
        return reserved_bytes(job, rank, limit_bytes)
    except CdmppError:
        return reserved_bytes(job, rank)


def _check(plan: Plan) -> None:
    pipeline = pipeline_of(plan)
    if plan.strategy.name not in _STRATEGIES or getattr(plan.strategy, "stage", 1) != 1:
        raise UsageError(f"--framework with {plan.strategy.name}: replicas are data or zero1 there")
    if other := [name for name in plan.degrees.beyond_one() if name not in _DEGREES]:
        raise UsageError(f"--framework with degrees.{other[0]}: expected {', '.join(_DEGREES)}")
    if plan.offload:
        raise UsageError(
            f"--framework with {' and '.join(plan.offload)} on the host, which PyTorch's FSDP has: leave it out"
        )
    if plan.recompute:
        raise UsageError("--framework with plan.recompute: say recompute=full or attention among its settings")
    if pipeline is not None and (pipeline.schedule not in _SCHEDULES or pipeline.cuts is not None):
        raise UsageError(
            f"--framework with schedule {pipeline.schedule}: expected {' or '.join(_SCHEDULES)}, without cuts"
        )
