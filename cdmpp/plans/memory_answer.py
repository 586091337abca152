"""Memory answer: what each rank of a job holds under a plan, part by part, and whether it fits; nothing is replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError
from cdmpp.plans.changed import with_own_names
from cdmpp.plans.fsdp_reserved import fsdp_reserved
from cdmpp.plans.host_bytes import on_host
from cdmpp.plans.host_memory import host_of, results_bytes, with_results_out
from cdmpp.plans.memory import MemoryParts
from cdmpp.plans.op_kinds import LOGITS
from cdmpp.plans.placement import Placement, micro_batch_of, micro_batches_of, pipeline_of
from cdmpp.plans.plan import ACTIVATIONS, PARAMETERS, Plan
from cdmpp.plans.rank_activations import activations_of
from cdmpp.plans.rank_memory import HeldStage, held_stages, parts_of_stages
from cdmpp.plans.sources.source import RankWork, StepSource
from cdmpp.plans.stages import Stage
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.units import quantity

BASIS = {
    "parameters": "counted",
    "gradients": "counted",
    "optimizer": "counted",
    "buffers": "counted",
    "inputs": "counted",
    "activations": "from what autograd keeps, and when each result is read last",
    "communication": "from the buffers of the strategy",
    "workspace": "from the operators of the update",
    "rounding": "from the blocks of PyTorch's allocator; gaps between them where it is followed",
    "context": "assumed",
    "communicators": "assumed",
}
"""How each part of ``MemoryParts`` is known."""
OUTSIDE = ("context", "communicators", "rounding")
"""Parts that are no tensors."""


@dataclass(frozen=True)
class RankAnswer:
    """All ranks of one place in the pipeline hold this; without a pipeline all ranks of the job do."""

    place: int
    """Place in the pipeline, from 0."""
    stages: tuple[int, ...]
    """Numbers of its stages."""
    first: tuple[str, ...]
    """Name of the first module with parameters of each of its stages."""
    in_flight: int | None
    """Micro-batches whose activations it holds at most; None where several stages share the rank."""
    parts: MemoryParts
    activations: Mapping[str, int]
    """Kind of operator -> bytes of ``parts.activations``, most first; ``LOGITS`` among them."""
    host_bytes: int = 0
    """Bytes in the memory of the host."""
    reserved_bytes: int | None = None
    """Bytes that PyTorch's allocator reserves, gaps between tensors too; None: it was not followed. Where it was,
    ``parts`` sum up to these and to what lies outside it, context and communicators: all that must fit."""

    @property
    def logits_bytes(self) -> int:
        """Return the bytes of logits and loss among the activations."""
        return self.activations.get(LOGITS, 0)

    @property
    def outside_bytes(self) -> int:
        """Return the bytes that are no tensors."""
        return sum(int(getattr(self.parts, name)) for name in OUTSIDE)

    @property
    def peak_bytes(self) -> int:
        """Return the sum of all parts."""
        return int(self.parts.peak_bytes)


@dataclass(frozen=True)
class MemoryAnswer:
    """This is what every rank of a job holds under one plan."""

    network: str
    plan: Plan
    micro_batch: int
    """Examples of one forward pass."""
    global_batch: int
    ranks: tuple[RankAnswer, ...]
    """One for each place in the pipeline."""
    limit_bytes: float | None
    """Most bytes of a device; None: unknown."""
    warnings: tuple[str, ...] = ()
    host_limit_bytes: float | None = None
    """Most bytes of a rank in the memory of the host; None where nothing lies there."""

    @property
    def heaviest(self) -> RankAnswer:
        """Return the rank that holds most, the first of equal ones."""
        return max(self.ranks, key=lambda one: one.peak_bytes)

    @property
    def fits(self) -> bool | None:
        """Return whether the heaviest rank fits, on the host too; None where no limit is known."""
        return None if self.limit_bytes is None else all(self.rank_fits(one) for one in self.ranks)

    def rank_fits(self, one: RankAnswer) -> bool:
        """Return whether a rank fits its device and its share of the host."""
        on_device = self.limit_bytes is None or one.peak_bytes <= self.limit_bytes
        return on_device and (self.host_limit_bytes is None or one.host_bytes <= self.host_limit_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as JSON takes them."""
        return {
            "network": self.network,
            "plan": self.plan.to_dict(),
            "micro_batch": self.micro_batch,
            "global_batch": self.global_batch,
            "limit_bytes": self.limit_bytes,
            "host_limit_bytes": self.host_limit_bytes,
            "fits": self.fits,
            "peak_bytes": self.heaviest.peak_bytes,
            "heaviest": self.heaviest.place,
            "basis": BASIS,
            "ranks": [
                {
                    "place": one.place,
                    "stages": list(one.stages),
                    "first_modules": list(one.first),
                    "in_flight": one.in_flight,
                    "part_bytes": {part.name: int(getattr(one.parts, part.name)) for part in fields(one.parts)},
                    "activation_bytes": dict(one.activations),
                    "logits_bytes": one.logits_bytes,
                    "outside_bytes": one.outside_bytes,
                    "peak_bytes": one.peak_bytes,
                    "host_bytes": one.host_bytes,
                    "reserved_bytes": one.reserved_bytes,
                    "fits": None if self.limit_bytes is None else self.rank_fits(one),
                }
                for one in self.ranks
            ],
        }


def memory_answer(
    source: StepSource, plan: Plan, topology: Topology, global_batch: int, is_gpu: bool,
    limit_bytes: float | None = None, network: str = "", warnings: tuple[str, ...] = (), allocator: str = "",
) -> MemoryAnswer:  # fmt: skip
    """Return what each rank holds.

    Args:
        source: what a rank runs at any micro-batch.
        plan: all settings.
        topology: the links of the job: balanced cuts take messages into account, and strategies the back end.
        global_batch: examples of all replicas in one step.
        is_gpu: whether PyTorch's caching allocator and the context of a GPU count.
        limit_bytes: most bytes of a device; None: unknown.
        network: its name, for a reader.
        warnings: what was assumed before, a sentence each.
        allocator: a name of ``fsdp_reserved.ALLOCATORS``, which is followed; empty: none is.

    Raises:
        CdmppError: a batch that does not divide evenly, a model that cannot be cut so, a source that knows no memory,
            or an allocator of another plan than that of FSDP.
    """
    micro_batch = micro_batch_of(plan, global_batch)
    work = source.work(micro_batch, plan.degrees, plan.model_parallel)
    if work.memory is None:
        raise CdmppError(f"{network or 'the source'} says what layers take, and not what they hold: give a network")
    if plan.devices or plan.shares:
        raise CdmppError(
            "the plan has ranks on unlike devices, or with shares of their own: their memory is told by `cdmpp step "
            "--plan`"
        )
    plan = with_own_names(plan, work.rank)
    work = with_results_out(work, plan, topology)
    made = Placement(work, plan, topology, fold=True, merge=False).stages
    stages = held_stages(work, plan, made, is_gpu)
    parts = parts_of_stages(plan, stages)
    kinds = activations_of(work, plan, stages, parts)
    reserved: list[int] | list[None] = [None] * len(parts)
    if allocator:
        reserved = fsdp_reserved(stages, plan, parts, work.exchanges, allocator)
        parts = [_rounded(own, size) for own, size in zip(parts, reserved, strict=True)]
    if plan.degrees.size(*plan.replicating) > 1:
        warnings = (*warnings, *plan.strategy.memory_warnings())
    host, host_limit = host_bytes(stages[0], work, plan), host_limit_bytes(plan, topology)
    found = tuple(
        RankAnswer(place, numbers, tuple(_first(made[number]) for number in numbers), in_flight, own, kind, host, size)
        for place, ((numbers, in_flight), own, kind, size) in enumerate(
            zip(stages_of_ranks(plan), parts, kinds, reserved, strict=True)
        )
    )
    return MemoryAnswer(network, plan, micro_batch, global_batch, found, limit_bytes, warnings, host_limit)


def _rounded(parts: MemoryParts, reserved: int) -> MemoryParts:
    """Return parts whose rounding is all that the allocator reserves beyond tensors, gaps between these too."""
    tensors = parts.peak_bytes - sum(getattr(parts, name) for name in OUTSIDE)
    return replace(parts, rounding=max(0, reserved - tensors))


def host_bytes(stage: HeldStage, work: RankWork, plan: Plan) -> int:
    """Return what a rank of the one stage of a plan holds in the memory of the host; ``work`` with its copies."""
    results = results_bytes(work) if ACTIVATIONS in plan.offload else 0
    if PARAMETERS not in plan.offload:
        return results
    whole = replace(plan, offload=())
    return results + on_host(stage.memory.rank_bytes(whole, plan.gradient_accumulation_steps, is_piped=False))


def host_limit_bytes(plan: Plan, topology: Topology) -> float | None:
    """Return the share of a rank in the memory of its host; None where the plan leaves nothing there."""
    return 1e9 * host_of(plan, topology).memory_gb * topology.nodes / topology.ranks if plan.offload else None


def host_warnings(work: RankWork, plan: Plan, topology: Topology, made: Sequence[Stage]) -> tuple[str, ...]:
    """Say where a rank leaves more on its host than there is for it; arguments as of ``held_stages``."""
    limit = host_limit_bytes(plan, topology)
    if limit is None or work.memory is None:
        return ()
    held = host_bytes(held_stages(work, plan, made, is_gpu=True)[0], work, plan)
    if held <= limit:
        return ()
    return (
        f"a rank leaves {quantity(held, 'B')} on its host, which has {quantity(limit, 'B')} for it: use more nodes",
    )


def stages_of_ranks(plan: Plan) -> list[tuple[tuple[int, ...], int | None]]:
    """Return the stages of each rank of a pipeline, and its micro-batches in flight where it has one stage."""
    pipeline, many, ranks = pipeline_of(plan), micro_batches_of(plan), plan.degrees.pp
    if pipeline is None or ranks == 1:
        return [((0,), 1)]
    order = pipeline.order
    if isinstance(order, LoopedSchedule):
        return [(order.stages_of(rank, ranks), None) for rank in range(ranks)]
    return [((rank,), order.live_micro_batches(rank, ranks, many)) for rank in range(ranks)]


def _first(stage: Stage) -> str:
    """Name of the first FSDP module of a stage that is not the root; else of the root."""
    names = [one.name for one in stage.rank.modules if not one.is_kept] or [one.name for one in stage.rank.modules]
    return names[0].removeprefix("inner.") if names else ""
