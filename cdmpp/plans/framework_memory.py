"""Framework memory: peaks of the ranks of a framework, from the sizes of a decoder, by the timeline of any plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.allocator import CONTEXT
from cdmpp.plans.block_cuts import cut_by_products
from cdmpp.plans.communicators import communicator_bytes
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.frameworks import Framework
from cdmpp.plans.live_bytes import LiveBytes
from cdmpp.plans.looped_memory import looped_parts
from cdmpp.plans.memory import Memory, MemoryParts, peak_parts
from cdmpp.plans.op_kinds import GRADIENTS, LOGITS
from cdmpp.plans.schedules import LOOPED, SCHEDULES
from cdmpp.plans.stage_bytes import stacked
from cdmpp.plans.transformer_rank import stage_rank
from cdmpp.plans.transformer_shape import StageOf, TransformerShape, stage_parameters, stored_score_bytes
from cdmpp.steps.step_graph import RankGraph
from cdmpp.steps.strategy import RankBytes


def framework_bytes(
    shape: TransformerShape, framework: Framework, degrees: ParallelDegrees, batch: int, micro_batches: int
) -> float:
    """Return the most bytes of a rank, with what is no tensor, on GPUs.

    Args:
        shape: of the model.
        framework: that runs it.
        degrees: of the job.
        batch: examples of a micro-batch.
        micro_batches: of one replica in a step.
    """
    shards = degrees.dp_replicate if framework.shards_state else 1
    job = FrameworkJob(shape, framework, batch, micro_batches, degrees.tp, degrees.pp, degrees.cp, shards)
    nccl = communicator_bytes(degrees.beyond_one())
    return float(max(replace(one, context=CONTEXT, communicators=nccl).peak_bytes for one in framework_parts(job)))


@dataclass(frozen=True)
class FrameworkJob:
    """These are the settings of one job."""

    shape: TransformerShape
    framework: Framework
    batch: int
    """Examples of a micro-batch."""
    micro_batches: int = 1
    """Micro-batches of one replica in a step."""
    tp: int = 1
    pp: int = 1
    cp: int = 1
    shards: int = 1
    """Ranks among which a framework divides what ranks of equal parameters share: replicas, times ``cp``."""
    chunks: int = 1
    """Stages of a rank; more than one are interleaved."""
    blocks: tuple[int, ...] = ()
    """Blocks of each stage; empty: as many on each."""
    replicas: int = 1
    """Ranks with the same parameters, which exchange gradients."""

    @property
    def stages(self) -> tuple[StageOf, ...]:
        """Return the blocks of each stage; ``CdmppError`` where there is no even number and none is said."""
        count = self.pp * self.chunks
        even = (self.shape.layers // count,) * count
        blocks = self.blocks or (self._balanced(count) if self.framework.balances_head else even)
        if sum(blocks) != self.shape.layers or len(blocks) != count:
            raise CdmppError(
                f"{self.shape.layers} layers in {count} stages of {', '.join(map(str, blocks))}: say how many blocks "
                "each stage has"
            )
        return tuple(StageOf(many, place == 0, place == count - 1) for place, many in enumerate(blocks))

    @property
    def gathered_bytes(self) -> int:
        """Return the bytes of buffers in which products gather all tokens."""
        wide = 2 * self.batch * self.shape.sequence // self.cp * self.shape.hidden
        return self.framework.gather_buffers * wide if self.tp > 1 else 0

    @property
    def message_bytes(self) -> int:
        """Return the bytes of messages that a stage of a pipeline holds beside what its ops read."""
        divides = self.tp if self.framework.sequence_parallel else 1
        wide = 2 * self.batch * self.shape.sequence // self.cp * self.shape.hidden // divides
        return self.framework.messages * wide if self.pp > 1 else 0

    @property
    def buffer_bytes(self) -> int:
        """Return the bytes of all buffers of the passes that stay."""
        return self.gathered_bytes + self.score_bytes + self.message_bytes

    @property
    def score_bytes(self) -> int:
        """Return the bytes of the buffer in which scores of attention are made."""
        if not self.framework.score_buffer or self.framework.attention != "unfused":
            return 0
        return stored_score_bytes(self.shape, self.batch, self.tp, self.cp)

    def _balanced(self, count: int) -> tuple[int, ...]:
        """Return the blocks of each stage as ``cut_by_products`` has it: a stage may have the head and no block."""
        shape = self.shape
        each = 4 * shape.hidden**2 + (3 if shape.is_gated else 2) * shape.hidden * shape.inner
        found, left = list[int](), shape.layers
        for many in cut_by_products([each] * shape.layers, shape.vocabulary * shape.hidden, count):
            found.append(min(many, left))
            left -= found[-1]
        return tuple(found)


def framework_parts(job: FrameworkJob) -> list[MemoryParts]:
    """Return what each rank of a pipeline holds at its peak, without what is no tensor; ``CdmppError`` as above."""
    each = [_stage(job, one) for one in job.stages]
    held, own, live = (tuple(column) for column in zip(*each, strict=True))
    if job.chunks > 1:
        found = _looped(job, held, own, live)
    else:
        order = SCHEDULES["1f1b"]()
        alive = [order.live_micro_batches(rank, job.pp, job.micro_batches) for rank in range(job.pp)]
        pairs = zip(each, alive, strict=True)
        found = [peak_parts(*one, max(2, job.micro_batches), in_flight) for one, in_flight in pairs]
    more = job.framework.blas_workspace_bytes + job.framework.kernel_workspace_bytes + job.buffer_bytes
    parts = [MemoryParts(*(int(getattr(one, name.name)) for name in fields(one))) for one in found]
    return [replace(one, workspace=one.workspace + more) for one in parts]


def _looped(
    job: FrameworkJob, held: Sequence[StepMemory], own: Sequence[RankBytes], live: Sequence[LiveBytes]
) -> list[MemoryParts]:
    order = LOOPED["interleaved1f1b"](stages_per_rank=job.chunks)
    many, nothing = np.array([job.micro_batches]), np.zeros((1, job.pp * job.chunks), np.int64)
    arrays = stacked([stacked(held)]), stacked([stacked(own)]), stacked([stacked(live)])
    found = looped_parts(order, job.pp, many, np.array([0]), *arrays, nothing, nothing)
    rows = [np.broadcast_to(getattr(found, one.name), (1, job.pp))[0] for one in fields(found)]
    return [MemoryParts(*one) for one in np.transpose(rows).tolist()]


def framework_kinds(job: FrameworkJob) -> list[dict[str, LiveBytes]]:
    """Divide what is alive on each stage by the kind of op, as ``Memory.by_kind`` does."""
    found = list[dict[str, LiveBytes]]()
    for one in job.stages:
        rank = stage_rank(job.shape, job.framework, one, job.batch, job.tp, job.cp)
        kinds = [GRADIENTS if op.phase == "backward" and op.kind != LOGITS else op.kind for op in rank.ops]
        found.append(Memory(_NOTHING, rank).by_kind(recomputed_of(job.framework, rank), kinds))
    return found


def recomputed_of(framework: Framework, rank: RankGraph) -> tuple[str, ...]:
    """Return the names of the modules that run again in the backward pass."""
    return tuple(one.name for one in rank.modules) if framework.recompute == "full" else ()


_NOTHING = StepMemory(0, 0, 0, 0, 0, 0, 0)


@lru_cache(maxsize=4096)
def _of_stage(job: FrameworkJob, stage: StageOf) -> tuple[StepMemory, RankBytes, LiveBytes]:
    shape, framework = job.shape, job.framework
    many = stage_parameters(shape, framework, stage, job.tp)
    own = framework.rank_bytes(many, job.shards, job.replicas)
    held = StepMemory(framework.weight * many, framework.gradient * many, framework.state * many, 0, 0, 0, 0)
    rank = stage_rank(shape, framework, stage, job.batch, job.tp, job.cp)
    return held, own, Memory(held, rank).live(recomputed_of(framework, rank))


def _stage(job: FrameworkJob, stage: StageOf) -> tuple[StepMemory, RankBytes, LiveBytes]:
    """Stages that are alike are worked out once, whatever the pipeline."""
    return _of_stage(replace(job, micro_batches=1, pp=1, chunks=1, blocks=()), stage)
