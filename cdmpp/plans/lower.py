"""Lower: a plan and the work of one rank in; what every rank of the job computes and exchanges in one step out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError
from cdmpp.plans.changed import one_batch
from cdmpp.plans.groups import on_groups, replica_exchanges
from cdmpp.plans.merged_stage import StageOps, merged_stage, operators_of
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.plan import Plan
from cdmpp.plans.scheduled import Scheduled, scheduled
from cdmpp.plans.sources.source import OpExchange, RankWork, StepSource
from cdmpp.plans.stages import Stage, stages_of
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.schedule import BACKWARD, FORWARD, Action
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.tasks import check_work
from cdmpp.steps.transforms.scale import shard_update


@dataclass(frozen=True)
class Lowered:
    """It is one step of a job under a plan, ready to be replayed."""

    graph: StepGraph
    """All ranks, or one for each stage of a pipeline and each part of an image, which are alike; all exchanges."""
    mesh: Mesh
    places: tuple[int, ...]
    """Rank of the job -> its place in the graph."""
    stages: tuple[Stage, ...]
    """What a rank of each stage runs for one micro-batch; without a pipeline there is one stage."""
    warnings: tuple[str, ...] = ()


def lower(
    source: StepSource, plan: Plan, topology: Topology, global_batch: int, fold: bool = True, merge: bool = False
) -> Lowered:
    """Lower a plan.

    Args:
        source: what a rank runs at any micro-batch.
        plan: all settings.
        topology: the links of the job: balanced cuts take messages into account, and strategies the back end.
        global_batch: examples of all replicas in one step.
        fold: one rank in place of all that are alike, which gives the same step and is faster to replay; else all.
        merge: one op in place of several between which nothing happens, which is faster to make and to replay.

    Raises:
        CdmppError: a batch that does not divide evenly, a model that cannot be cut so, and as ``Strategy.exchanges``.
    """
    return lower_work(source.work(micro_batch_of(plan, global_batch), plan.degrees), plan, topology, fold, merge)


def lower_work(work: RankWork, plan: Plan, topology: Topology, fold: bool = True, merge: bool = False) -> Lowered:
    """Lower a plan as ``lower`` does, from the work of one rank for one micro-batch."""
    return _Lowering(work, plan, topology, fold, merge).lowered()


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
class _Lowering:
    work: RankWork
    plan: Plan
    topology: Topology
    fold: bool
    merge: bool

    def lowered(self) -> Lowered:
        plan = self.plan
        strategy = plan.strategy.on_backend(self.topology.backend)
        ranks = tuple(replace(self.steps[stage].rank, rank=place) for place, stage in enumerate(self.stage_of))
        sizes = {name: getattr(plan.degrees, name) for name in plan.replicating}
        graph = shard_update(StepGraph(ranks), strategy.shards(sizes))
        replicas = replica_exchanges(graph, replace(plan, strategy=strategy), self.mesh, self.places)
        if self.fold and any(one.kind == "push_pull" for one in replicas):
            return replace(self, fold=False).lowered()  # servers are on some ranks only
        graph = graph.with_exchanges((*replicas, *self.tied()))
        graph = replace(graph, exchanges=(*self.messages(), *self.of_operators(), *graph.exchanges))
        warnings = self.work.warnings
        if self.pipeline is not None and len(self.stages) > 1:
            order, count, many = self.pipeline.order, len(self.stages), self.pipeline.micro_batches
            warnings += order.warnings(count, many)
            if replicas_of(plan) > 1:
                warnings += plan.strategy.pipeline_warnings(1 < many == order.live_micro_batches(0, count, many))
        return Lowered(graph, self.mesh, self.places, self.stages, warnings)

    @cached_property
    def pipeline(self) -> Pipeline | None:
        return pipeline_of(self.plan)

    @cached_property
    def mesh(self) -> Mesh:
        return Mesh(self.plan.degrees)

    @cached_property
    def places(self) -> tuple[int, ...]:
        if not self.fold:
            return tuple(range(self.plan.ranks))
        alike = [
            (self.mesh.place(rank, "pp"), self.mesh.place(rank, "spatial"), self.in_nodes[rank])
            for rank in range(self.plan.ranks)
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
    def stage_of(self) -> tuple[int, ...]:
        """Stage of each rank of the graph."""
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
        (rank,) = self.one_batch.ranks
        if self.pipeline is None:
            return stages_of(rank, ())
        chain = self.chains[0]
        return self.pipeline.stages(
            rank,
            self.plan.degrees.pp,
            lambda n_bytes: float(self.topology.latency_s("send_recv", np.array(n_bytes), chain[:2])),
        )

    @cached_property
    def chains(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of the job that pass micro-batches on to each other; one chain in place of all that are alike."""
        chains = reversed(self.mesh.groups("pp"))
        return tuple({tuple(self.places[rank] for rank in chain): chain for chain in chains}.values())

    @cached_property
    def steps(self) -> tuple[Scheduled, ...]:
        """One step of each stage."""
        count, many = len(self.stages), micro_batches_of(self.plan)
        tasks = [many * self.plan.gradient_accumulation_steps * one.rank.task_count for one, _ in self.parts]
        check_work(sum(tasks[stage] for stage in self.stage_of), len(self.stage_of))
        orders = [
            [Action(0, kind, number) for number in range(many) for kind in (FORWARD, BACKWARD)]
            if self.pipeline is None or count == 1
            else self.pipeline.order.actions(stage, count, many)
            for stage in range(count)
        ]
        return tuple(
            scheduled(last.rank, order, self.plan.gradient_accumulation_steps, earlier.rank)
            for (earlier, last), order in zip(self.parts, orders, strict=True)
        )

    @cached_property
    def parts(self) -> tuple[tuple[StageOps, StageOps], ...]:
        """Ops of each stage for every micro-batch but the last, and for the last one."""
        found = [StageOps(stage.rank, operators_of(self.operators, stage.places)) for stage in self.stages]
        if not self.merge:
            return tuple((one, one) for one in found)
        return tuple((merged_stage(one, with_gradients=False), merged_stage(one, True)) for one in found)

    def messages(self) -> Iterator[Exchange]:
        """What stages send each other, of each direction in the order in which it is sent."""
        for chain in self.chains:
            for stage in range(len(chain) - 1):
                sent, returned = self.stages[stage].sent_bytes, self.stages[stage + 1].returned_bytes
                for source, target, kind, sizes in (
                    (stage, stage + 1, FORWARD, sent),
                    (stage + 1, stage, BACKWARD, returned),
                ):
                    yield from self._sent(chain, source, target, kind, sizes)

    def _sent(
        self, chain: tuple[int, ...], source: int, target: int, kind: str, sizes: tuple[int, ...]
    ) -> Iterator[Exchange]:
        is_ahead = self.pipeline is not None and self.pipeline.overlap
        members = chain[source], chain[target]
        sender, receiver = (self.places[rank] for rank in members)
        taken = {one.number: at for at, one in enumerate(self.steps[target].passes) if one.kind == kind}
        for at, one in enumerate(self.steps[source].passes):
            if one.kind != kind:
                continue
            passes, place = self.steps[target].passes, taken[one.number]
            posted = passes[max(place - 1, 0) if is_ahead else place].begin - 1
            before = {receiver: (passes[place].begin,)}
            if not is_ahead:
                before[sender] = (self.steps[source].turn(at),)
            for size in sizes:
                yield Exchange(
                    "send_recv", size, {sender: one.end, receiver: posted}, before,
                    f"{kind} to stage {target}, micro-batch {one.number}", group=f"{sender}->{receiver}",
                    members=members,
                )  # fmt: skip

    def tied(self) -> Iterator[Exchange]:
        """All-reduces of the gradients of parameters that several stages hold, once a step."""
        for chain in self.chains:
            for name in dict.fromkeys(name for stage in self.stages for name in stage.tied):
                own = [number for number, stage in enumerate(self.stages) if name in stage.tied]
                made = {
                    self.places[chain[number]]: one
                    for number in own
                    for one in self.steps[number].rank.gradients
                    if one.name == name
                }
                size = max(one.bytes for one in made.values())
                after = {place: one.ready_after for place, one in made.items()}
                members = tuple(chain[number] for number in own)
                yield Exchange("all_reduce", size, after, name=f"{name}, tied", members=members)

    def of_operators(self) -> Iterator[Exchange]:
        """Exchanges of divided operators, for each micro-batch, stage after stage."""
        for stage, step in enumerate(self.steps):
            own = [place for place, of in enumerate(self.stage_of) if of == stage]
            last = max(one.number for one in step.passes)
            for one in step.passes:
                part = self.parts[stage][one.number == last]
                for found in part.operators:
                    if part.rank.ops[found.before[0]].phase == one.kind:
                        after = one.begin - 1 if found.after == START else one.places[found.after]
                        before = tuple(one.places[place] for place in found.before)
                        yield from self._placed(found, dict.fromkeys(own, after), dict.fromkeys(own, before))

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
        return tuple(sorted(found, key=lambda one: (one.after, one.before)))

    def _placed(
        self, found: OpExchange, after: Mapping[int, int], before: Mapping[int, tuple[int, ...]]
    ) -> Iterator[Exchange]:
        """The exchange in each group along its degree; a message from each rank to its neighbour, if it has one.

        Collectives have a process group of their own, also where it has the same ranks as that of the replicas.
        """
        one = Exchange(found.kind, found.bytes, after, before, found.name, group="" if found.shift else found.degree)
        if not found.shift:
            yield from on_groups(one, (found.degree,), self.mesh, self.places)
            return
        seen = set[tuple[int, int]]()
        for group in self.mesh.groups(found.degree):
            pairs = zip(group, group[found.shift :], strict=False)
            if found.shift < 0:
                pairs = zip(group[-found.shift :], group, strict=False)
            for members in pairs:
                pair = self.places[members[0]], self.places[members[1]]
                if pair[0] in after and pair not in seen:
                    seen.add(pair)
                    own = {place: after[place] for place in pair}, {place: before[place] for place in pair}
                    yield replace(one, after=own[0], before=own[1], group=f"{pair[0]}->{pair[1]}", members=members)
