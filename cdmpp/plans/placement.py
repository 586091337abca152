"""Placement: which stage, ops and step each rank of a job has under a plan, before it exchanges anything."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError
from cdmpp.plans.degrees import BATCHED
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.plan import Plan
from cdmpp.plans.rank_stages import RankStages
from cdmpp.plans.scheduled import Scheduled, scheduled
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.stages import Stage
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.schedule import Schedule
from cdmpp.steps.tasks import check_work


def micro_batch_of(plan: Plan, global_batch: int) -> int:
    """Return the examples of one forward pass of one rank; ``CdmppError`` where they are no whole number."""
    replicas, steps = replicas_of(plan), plan.gradient_accumulation_steps
    parts = replicas * steps * micro_batches_of(plan)
    if global_batch < 1 or global_batch % parts:
        raise CdmppError(
            f"a global batch of {global_batch} does not divide into {parts} equal parts: {replicas} replicas x "
            f"{steps} gradient accumulation steps x {micro_batches_of(plan)} micro-batches"
        )
    return global_batch // parts


def global_batch_of(plan: Plan, batch: int) -> int:
    """Return the examples of all ranks in one step, where a replica has ``batch`` in each accumulation step."""
    return batch * replicas_of(plan) * plan.gradient_accumulation_steps


def replica_batch_of(plan: Plan, global_batch: int) -> int:
    """Return the examples of a replica in each accumulation step; ``CdmppError`` as ``micro_batch_of``."""
    return micro_batch_of(plan, global_batch) * micro_batches_of(plan)


def replicas_of(plan: Plan) -> int:
    """Return how many ranks, or groups of ranks that divide a model, have examples of their own."""
    return plan.degrees.size(*BATCHED)


def micro_batches_of(plan: Plan) -> int:
    """Return the micro-batches of the plan's pipeline; 1 without one."""
    pipeline = pipeline_of(plan)
    return 1 if pipeline is None else pipeline.micro_batches


def pipeline_of(plan: Plan) -> Pipeline | None:
    """Return the pipeline of a plan; None where it has none."""
    return next((one for one in plan.model_parallel if isinstance(one, Pipeline)), None)


class RankKind(NamedTuple):
    """Ranks of one kind run the same ops."""

    place: int
    """Along the pipeline."""
    device: str
    """Its name; empty where the plan names none."""
    many: int
    """Micro-batches of the pipeline in each of its batches."""
    batches: int
    """Gradient accumulation steps."""


@dataclass(frozen=True)
class Placement:
    """Its parts are worked out when they are first asked for."""

    work: RankWork
    plan: Plan
    topology: Topology
    fold: bool
    merge: bool

    @cached_property
    def pipeline(self) -> Pipeline | None:
        """The pipeline of the plan; None where it has none."""
        return pipeline_of(self.plan)

    @cached_property
    def mesh(self) -> Mesh:
        """The numbers of the ranks."""
        return Mesh(self.plan.degrees)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Rank of the job -> its place in the graph."""
        if not self.fold:
            return tuple(range(self.plan.ranks))
        apart = ("pp", *dict.fromkeys(one.degree for one in self.work.exchanges if one.shift and not one.is_ring))
        alike = [
            (*(self.mesh.place(rank, name) for name in apart), self._chain_kinds(rank), self.in_nodes[rank])
            for rank in range(self.plan.ranks)
        ]  # ranks at the edges of an image have one neighbour, others two
        numbers = {one: place for place, one in enumerate(sorted(set(alike)))}
        return tuple(numbers[one] for one in alike)

    def _chain_kinds(self, rank: int) -> tuple[RankKind, ...]:
        """Return the work of the ranks of the pipeline of a rank, where ranks may be unlike."""
        plan = self.plan
        if not plan.devices and not plan.shares:
            return ()
        return tuple(self._kind(one) for one in self.mesh.group_of(rank, ("pp",)))

    @cached_property
    def in_nodes(self) -> tuple[int, ...]:
        """Number a rank gets for how its groups, and the pairs of its chain, lie in the nodes: equal ones are alike."""
        degrees, shapes = self.plan.degrees, [list[object]() for _ in range(self.plan.ranks)]
        data = {(name,) for name in self.plan.replicating} | {self.plan.replicating}
        for along in sorted(data | {(name,) for name in degrees.beyond_one()}):
            for group in self.mesh.groups(*along) if self.topology.nodes > 1 and degrees.size(*along) > 1 else ():
                pairs = map(self.topology.shape, pairwise(group)) if along == ("pp",) else ()
                own = (self.topology.shape(group), *pairs)
                for rank in group:
                    shapes[rank].append(own)
        seen: dict[tuple[object, ...], int] = {}
        return tuple(seen.setdefault(tuple(own), len(seen)) for own in shapes)

    @cached_property
    def pipeline_place(self) -> tuple[int, ...]:
        """Place of each rank of the graph along its pipeline: of its stage, where it has one."""
        first = {place: rank for rank, place in reversed(list(enumerate(self.places)))}
        return tuple(self.mesh.place(first[place], "pp") for place in range(len(first)))

    @cached_property
    def kinds(self) -> tuple[RankKind, ...]:
        """Ranks of the graph that run the same, stage after stage; without unlike ranks one for each stage."""
        return tuple(sorted({self._kind(rank) for rank in range(self.plan.ranks)}))

    @cached_property
    def kind_of(self) -> tuple[int, ...]:
        """Place of each rank of the graph in ``kinds``."""
        numbers = {one: place for place, one in enumerate(self.kinds)}
        first = {place: rank for rank, place in reversed(list(enumerate(self.places)))}
        return tuple(numbers[self._kind(first[place])] for place in range(len(first)))

    def of_kind(self, kind: int) -> list[int]:
        """List the ranks of the graph of one of ``kinds``."""
        return [place for place, of in enumerate(self.kind_of) if of == kind]

    @cached_property
    def ends_backward(self) -> bool:
        """Return True if a backward pass ends only once its gradients are averaged."""
        return self.plan.strategy.on_backend(self.topology.backend).ends_backward

    def _kind(self, rank: int) -> RankKind:
        plan = self.plan
        many, batches = micro_batches_of(plan), plan.gradient_accumulation_steps
        if plan.shares:
            share = plan.shares[self.mesh.replica(rank)]
            many, batches = (share, batches) if many > 1 else (many, share)
        return RankKind(self.mesh.place(rank, "pp"), plan.devices[rank] if plan.devices else "", many, batches)

    def on(self, device: str) -> RankStages:
        """Return the stages of a rank on a device; each device is cut where the plan says, or as the first one is."""
        if device not in self._on:
            plan, pipeline, chain = self.plan, self.pipeline, self.chains[0]
            if pipeline is not None and pipeline.cuts is None and len(set(plan.devices)) > 1:
                raise CdmppError(
                    "plan.devices differ, and its pipeline has no cuts, which depend on them: give cuts, as `cdmpp "
                    "plan --devices` writes them"
                )
            self._on[device] = RankStages(
                self.work.on(device), plan, pipeline, plan.degrees.pp * self.order.stages_per_rank,
                lambda sizes: self.topology.latency_s("send_recv", sizes, chain[:2]), self.order.divides_backward,
                self.merge,
            )  # fmt: skip
            self._check_alike(device)
        return self._on[device]

    @cached_property
    def _on(self) -> dict[str, RankStages]:
        return {}

    def _check_alike(self, device: str) -> None:
        """``CdmppError`` where stages of two devices do not send each other the same."""
        first = next(iter(self._on))
        if device == first:
            return
        pairs = zip(self._on[first].stages, self._on[device].stages, strict=True)
        for number, (one, other) in enumerate(pairs):
            if (one.sent_bytes, one.returned_bytes) != (other.sent_bytes, other.returned_bytes):
                raise CdmppError(
                    f"stage {number} sends {one.sent_bytes} bytes from {first}, and {other.sent_bytes} from {device}: "
                    "devices of one job run the same network in the same precision"
                )

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Return the work of a rank of each stage for one micro-batch, on the first device."""
        return self.on(self.plan.devices[0] if self.plan.devices else "").stages

    @cached_property
    def chains(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of the job that pass micro-batches on to each other; one chain in place of all that are alike."""
        chains = reversed(self.mesh.groups("pp"))
        return tuple({tuple(self.places[rank] for rank in chain): chain for chain in chains}.values())

    @cached_property
    def order(self) -> Schedule:
        """The schedule of the pipeline; where there is one stage, micro-batches come one after the other."""
        if self.pipeline is None or self.plan.degrees.pp == 1:
            return SCHEDULES["sequential"]()
        return self.pipeline.order

    @cached_property
    def steps(self) -> tuple[Scheduled, ...]:
        """One step of each of ``kinds``."""
        tasks = [
            one.many * one.batches * sum(self.on(one.device).parts[stage].last.rank.task_count for stage in own)
            for one, own in ((kind, self.owned(kind.place)) for kind in self.kinds)
        ]
        check_work(sum(tasks[kind] for kind in self.kind_of), len(self.kind_of))
        return tuple(
            scheduled(
                {stage: self.on(one.device).parts[stage] for stage in self.owned(one.place)},
                self.order.actions(one.place, self.plan.degrees.pp, one.many),
                one.batches,
            )
            for one in self.kinds
        )

    def owned(self, place: int) -> tuple[int, ...]:
        """Return the stages of a rank by its place along the pipeline."""
        return self.order.stages_of(place, self.plan.degrees.pp)

    def step_of(self, rank: int) -> Scheduled:
        """Return the step of a rank of the job."""
        return self.steps[self.kind_of[self.places[rank]]]

    def kind(self, rank: int) -> RankKind:
        """Return what a rank of the job runs."""
        return self.kinds[self.kind_of[self.places[rank]]]
