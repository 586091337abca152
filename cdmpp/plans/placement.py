"""Placement: which stage, ops and step each rank of a job has under a plan, before it exchanges anything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError
from cdmpp.plans.changed import one_batch
from cdmpp.plans.cut import stages_of
from cdmpp.plans.divided_backward import DividedBackward
from cdmpp.plans.merged_stage import StageOps, merged_stage, operators_of
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.plan import Plan
from cdmpp.plans.scheduled import Scheduled, StageParts, scheduled
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.plans.sources.source import OpExchange, RankWork
from cdmpp.plans.stages import Stage
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.schedule import Schedule
from cdmpp.steps.step_graph import StepGraph
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
    return plan.degrees.size("dp_replicate", "dp_shard")


def micro_batches_of(plan: Plan) -> int:
    """Return the micro-batches of the plan's pipeline; 1 without one."""
    pipeline = pipeline_of(plan)
    return 1 if pipeline is None else pipeline.micro_batches


def pipeline_of(plan: Plan) -> Pipeline | None:
    """Return the pipeline of a plan; None where it has none."""
    return next((one for one in plan.model_parallel if isinstance(one, Pipeline)), None)


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
        apart = ("pp", *dict.fromkeys(one.degree for one in self.work.exchanges if one.shift))
        alike = [
            (*(self.mesh.place(rank, name) for name in apart), self.in_nodes[rank]) for rank in range(self.plan.ranks)
        ]  # ranks at the edges of an image have one neighbour, others two
        numbers = {one: place for place, one in enumerate(sorted(set(alike)))}
        return tuple(numbers[one] for one in alike)

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
    def one_batch(self) -> StepGraph:
        """The whole rank with its exchanges of operators, as the plan changes it."""
        exchanges = tuple(
            Exchange(one.kind, one.bytes, {0: one.after}, {0: one.before}, one.name, server=number)
            for number, one in enumerate(self.work.exchanges)
        )
        return one_batch(StepGraph((replace(self.work.rank, rank=0),), exchanges), self.plan)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """What a rank of each stage runs for one micro-batch."""
        (rank,) = self.one_batch.ranks
        if self.pipeline is None:
            return stages_of(rank, ())
        chain = self.chains[0]
        return self.pipeline.stages(
            rank,
            self.plan.degrees.pp * self.order.stages_per_rank,
            lambda sizes: self.topology.latency_s("send_recv", sizes, chain[:2]),
        )

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
        """One step of each rank of a pipeline."""
        ranks, many, batches = self.plan.degrees.pp, micro_batches_of(self.plan), self.plan.gradient_accumulation_steps
        tasks = [many * batches * one.last.rank.task_count for one in self.parts]
        owned = [self.order.stages_of(rank, ranks) for rank in range(ranks)]
        each = [sum(tasks[stage] for stage in stages) for stages in owned]
        check_work(sum(each[place] for place in self.pipeline_place), len(self.pipeline_place))
        return tuple(
            scheduled({stage: self.parts[stage] for stage in stages}, self.order.actions(rank, ranks, many), batches)
            for rank, stages in enumerate(owned)
        )

    @cached_property
    def parts(self) -> tuple[StageParts, ...]:
        """Ops of each stage for one micro-batch."""
        found = []
        for stage in self.stages:
            whole = self._merged(StageOps(stage.rank, operators_of(self.operators, stage.places)))
            own = None
            if self.order.divides_backward:
                divided = DividedBackward(stage)
                own = self._merged(StageOps(divided.rank, (), divided.first_weights))
            found.append(StageParts(*whole, own))
        return tuple(found)

    def _merged(self, given: StageOps) -> tuple[StageOps, StageOps]:
        """Ops of every micro-batch but the last, and of the last one."""
        if not self.merge:
            return given, given
        return merged_stage(given, with_gradients=False), merged_stage(given, with_gradients=True)

    @cached_property
    def operators(self) -> tuple[OpExchange, ...]:
        """Exchanges of one micro-batch at the places of the changed rank; those of what runs again come again."""
        ops, found = self.one_batch.ranks[0].ops, list[OpExchange]()
        again = {
            op.forward: place
            for place, op in enumerate(ops)
            if op.phase == "backward" and op.forward is not None and op.name == ops[op.forward].name
        }
        for one in self.one_batch.exchanges:
            own = replace(self.work.exchanges[one.server], after=one.after[0], before=one.before[0])
            found.append(own)
            if repeated := tuple(again[place] for place in own.before if place in again):
                begin = min(repeated) - 1
                made = again.get(own.after, begin)  # a consumer that runs again first reads what was saved
                found.append(replace(own, after=min(made, begin), before=repeated))
        return tuple(sorted(found, key=lambda one: one.after))
