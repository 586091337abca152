"""Reserved memory: bytes that PyTorch's allocator takes from a GPU for a framework's job, gaps between tensors too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from cdmpp.plans.allocations import Allocations, Pass
from cdmpp.plans.caching_allocator import CachingAllocator
from cdmpp.plans.framework_memory import FrameworkJob, recomputed_of
from cdmpp.plans.op_kinds import LOGITS
from cdmpp.plans.schedules import LOOPED, SCHEDULES
from cdmpp.plans.sizes import MIB
from cdmpp.plans.transformer_rank import stage_rank
from cdmpp.plans.transformer_shape import StageOf, parameter_sizes
from cdmpp.steps.schedule import FORWARD, Action
from cdmpp.steps.step_graph import Op

_BUCKET = 25 * MIB
"""Bytes of a bucket of PyTorch's DDP."""
_MASTER = 4
"""Bytes of a weight in float32 among the states."""
_STEPS = 2
"""States of Adam come with the first update, into gaps that passes left; the second step then needs new segments."""


def reserved_bytes(job: FrameworkJob, rank: int = 0, limit_bytes: int | None = None) -> int:
    """Return the most bytes that the allocator of a rank of the pipeline reserves.

    Passes run in the order of the schedule for two steps, and weights, buffers, states and what the update gathers
    take their blocks when the framework takes them. Of micro-batches as many run as are ever in flight, and two more.

    Args:
        job: of a framework.
        rank: place in the pipeline.
        limit_bytes: what the device has for it; None: no limit.

    Raises:
        CdmppError: tensors that do not fit into the limit, or ranks that do not divide the model.
    """
    stages, framework = job.stages, job.framework
    own = range(rank, len(stages), job.pp)
    passes = {stage: _allocations(_alike(job), stages[stage]) for stage in own}
    sizes = [size for stage in own for size in parameter_sizes(job.shape, framework, stages[stage], job.tp)]
    allocator = CachingAllocator(limit_bytes)
    running = Pass(allocator, framework.host_ahead if job.pp == 1 or not framework.waits_for_messages else 0)
    for size in _lasting(job, sizes):
        allocator.take(size)
    actions = _actions(job, rank)
    for step in range(_STEPS):
        for one in actions:
            both = passes[one.stage]
            running.run(both.forward if one.kind == FORWARD else both.backward, one.stage, one.micro_batch)
        allocator.wait()
        for size in _states(job, sizes) if step == 0 else ():
            allocator.take(size)
        for block in [allocator.take(size) for size in _gathered(job, sum(sizes))]:
            allocator.free(block)
    return allocator.peak_bytes


def exchanges(op: Op) -> bool:
    """Return True for ops with a gathered tensor, which a collective of tensor parallelism reads or writes."""
    return op.workspace_bytes > 0 and op.kind in ("linear", "embedding", LOGITS)


def _alike(job: FrameworkJob) -> tuple[object, ...]:
    return job.shape, job.framework, job.batch, job.tp, job.cp


@lru_cache(maxsize=1024)
def _allocations(alike: tuple[object, ...], stage: StageOf) -> Allocations:
    shape, framework, batch, tp, cp = alike
    rank = stage_rank(shape, framework, stage, batch, tp, cp)  # type: ignore[arg-type]
    return Allocations.of(rank, recomputed_of(framework, rank), exchanges)  # type: ignore[arg-type]


def _actions(job: FrameworkJob, rank: int) -> tuple[Action, ...]:
    """Return the actions of a rank in a step with as many micro-batches as matter."""
    if job.chunks > 1:
        many = min(job.micro_batches, 2 * job.pp)
        return tuple(LOOPED["interleaved1f1b"](stages_per_rank=job.chunks).actions(rank, job.pp, many))
    many = min(job.micro_batches, job.pp - rank + 2)
    return SCHEDULES["1f1b"]().actions(rank, job.pp, many)


def _lasting(job: FrameworkJob, sizes: list[int]) -> list[int]:
    """Return bytes of the tensors that stay, but for the states of Adam: weights one by one, gradients in one."""
    framework, many = job.framework, sum(sizes)
    own = framework.rank_bytes(many, job.shards, job.replicas)
    found = [framework.weight * size for size in sizes] if not framework.shards_all else [own.parameter_bytes]
    found += [*_buckets(framework.bucket, sizes)] if own.bucket_bytes else []
    found += [own.gradient_bytes, _masters(job, many)]
    found += [framework.blas_workspace_bytes // 2] * 2 + [
        framework.kernel_workspace_bytes,
        job.score_bytes,
        job.message_bytes,
    ]
    found += [job.gathered_bytes // framework.gather_buffers] * framework.gather_buffers if job.gathered_bytes else []
    return [size for size in found if size]


def _buckets(each: int, sizes: list[int]) -> Iterator[int]:
    """Yield bytes of DDP's buckets, which follow the parameters backwards."""
    held = 0
    for size in reversed(sizes):
        held += each * size
        if held >= _BUCKET:
            yield held
            held = 0
    if held:
        yield held


def _masters(job: FrameworkJob, many: int) -> int:
    """Return bytes of the weights in float32, one tensor, of the states that a rank has."""
    own = job.framework.rank_bytes(many, job.shards)
    return own.state_bytes * _MASTER // job.framework.state if job.framework.state >= _MASTER + 8 else 0


def _states(job: FrameworkJob, sizes: list[int]) -> list[int]:
    """Return bytes of the moments of Adam, two tensors a parameter."""
    left = job.framework.rank_bytes(sum(sizes), job.shards).state_bytes - _masters(job, sum(sizes))
    return [left * size // sum(sizes) // 2 for size in sizes for _ in range(2)]


def _gathered(job: FrameworkJob, many: int) -> list[int]:
    """Return bytes of what the update writes: a rank's part, the parts of all in a list, and NCCL's copy in one."""
    framework = job.framework
    if job.shards == 1 or not framework.update_copies:
        return []
    part, whole = -(-framework.weight * many // job.shards), framework.weight * many
    return [part, *[part] * job.shards, *[whole] * (framework.update_copies - 1)]
