"""Lower: a plan and the work of one rank in; what every rank of the job computes and exchanges in one step out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from cdmpp.collectives.topology import Topology
from cdmpp.plans.changed import with_own_names
from cdmpp.plans.groups import replica_exchanges
from cdmpp.plans.host_memory import THREADS, with_parameters_out, with_results_out
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.operator_exchanges import OperatorExchanges
from cdmpp.plans.placement import Placement, micro_batch_of, replicas_of
from cdmpp.plans.plan import PARAMETERS, Plan
from cdmpp.plans.shared_parameters import shards_of
from cdmpp.plans.sources.source import RankWork, StepSource, check_cast
from cdmpp.plans.stage_messages import StageMessages
from cdmpp.plans.stages import Stage, tied_groups
from cdmpp.steps.derived import derived
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import RankGraph, StepGraph
from cdmpp.steps.transforms.copies import with_copies
from cdmpp.steps.transforms.scale import shard_update

UNEVEN = (
    "replicas have unlike numbers of micro-batches: divide losses by their mean number, not by that of each replica, "
    "and run a loop of your own, since Megatron and torchtitan give each as many"
)
"""A plan with shares needs this."""


@dataclass(frozen=True)
class Lowered:
    """It is one step of a job under a plan, ready to be replayed."""

    graph: StepGraph
    """All ranks, or one for each stage of a pipeline and each part of an image, which are alike; all exchanges."""
    mesh: Mesh
    places: tuple[int, ...]
    """Rank of the job -> its place in the graph."""
    stages: tuple[Stage, ...]
    """Each stage with what one of its ranks runs for one micro-batch; without a pipeline there is one stage."""
    warnings: tuple[str, ...] = ()
    by_device: Mapping[str, tuple[Stage, ...]] = field(default_factory=dict)
    """Device -> the same stages on it, where the plan names devices; ``stages`` are those of the first."""
    replicas: range = range(0)
    """Places of the exchanges by which replicas keep their parameters alike."""

    @property
    def without_replicas(self) -> StepGraph:
        """The step in which these exchanges take no time."""
        exchanges = self.graph.exchanges
        return derived(self.graph, exchanges=exchanges[: self.replicas.start] + exchanges[self.replicas.stop :])


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
    work = source.work(micro_batch_of(plan, global_batch), plan.degrees, plan.model_parallel)
    return lower_work(work, plan, topology, fold, merge)


def lower_work(work: RankWork, plan: Plan, topology: Topology, fold: bool = True, merge: bool = False) -> Lowered:
    """Lower a plan as ``lower`` does, from the work of one rank for one micro-batch."""
    plan = with_own_names(plan, work.rank)
    return _Lowering(with_results_out(work, plan, topology), plan, topology, fold, merge and not plan.offload).lowered()


class _Lowering(Placement):
    def lowered(self) -> Lowered:
        plan = self.plan
        strategy = plan.strategy.on_backend(self.topology.backend)
        check_cast(self.work, strategy, plan.degrees.size(*plan.replicating))
        ranks = tuple(derived(self.steps[kind].rank, rank=place) for place, kind in enumerate(self.kind_of))
        if plan.shares:  # nothing is exchanged in other batches, of which ranks have unlike numbers
            ranks = tuple(derived(one, modules=_of_last_batch(one)) for one in ranks)
        sizes = {name: getattr(plan.degrees, name) for name in plan.replicating}
        shards = shards_of(strategy, self.work.rank, sizes)
        graph = shard_update(StepGraph(ranks), shards)
        replicas, operators = self.replicas(graph, replace(plan, strategy=strategy)), OperatorExchanges(self)
        if self.fold and any(one.kind == "push_pull" for one in replicas):
            return replace(self, fold=False).lowered()  # servers are on some ranks only
        tied, messages = tuple(self.tied(strategy.gradient_parts(sizes))), tuple(StageMessages(self).all())
        late = tuple(one for one in messages if one.follows) if replicas and self.ends_backward else ()
        early = tuple(derived(one, follows=False) for one in messages if not (late and one.follows))
        clipped, updates = operators.of_updates(shards, bool(replicas))
        if strategy.sums_parts and replicas:
            clipped, updates, replicas = (), (), tuple(operators.with_sums(replicas))
        own = graph.with_exchanges((*replicas, *tied)).exchanges
        ends = len(replicas)  # what is late waits for these
        before, behind = (*early, *operators.of_operators()), (*late, *own[ends:])
        behind = (*clipped, *behind, *operators.of_norms(), *updates) if self.work.is_clipped else (*updates, *behind)
        graph = derived(graph, exchanges=(*before, *own[:ends], *behind))
        works = {place: self.work.on(self.kinds[kind].device) for place, kind in enumerate(self.kind_of)}
        copies = {place: work.copies for place, work in works.items() if work.copies is not None}
        if copies and strategy.copies_buffers:
            numbers = range(len(before), len(before) + ends)
            under_way_s = {number: self._under_way_s(graph.exchanges[number]) for number in numbers}
            graph = with_copies(graph, copies, numbers, under_way_s)
        if PARAMETERS in plan.offload:
            numbers = range(len(before), len(before) + ends)
            graph = with_parameters_out(graph, numbers, self.work, plan, self.topology)
        warnings = self.work.warnings
        if plan.degrees.size(*plan.replicating) > 1:
            warnings += strategy.memory_warnings()
        if self.pipeline is not None and len(self.stages) > 1:
            warnings += self.order.warnings(plan.degrees.pp, self.pipeline.micro_batches)
            if replicas_of(plan) > 1:
                counts = {*plan.shares} or {self.pipeline.micro_batches}
                is_first = any(self.order.is_forward_first(plan.degrees.pp, many) for many in counts)
                warnings += plan.strategy.pipeline_warnings(is_first)
        warnings += (THREADS,) if PARAMETERS in plan.offload else ()
        if plan.shares:
            warnings += (UNEVEN,)
        by_device = {name: self.on(name).stages for name in dict.fromkeys(plan.devices)}
        of_replicas = range(len(before), len(before) + ends)
        return Lowered(graph, self.mesh, self.places, self.stages, warnings, by_device, of_replicas)

    def _under_way_s(self, one: Exchange) -> float:
        """Seconds of an exchange of replicas that nothing disturbs."""
        return self.topology.cost(one.collective(self.topology.backend), one.participants).latency_s

    def replicas(self, graph: StepGraph, plan: Plan) -> tuple[Exchange, ...]:
        """Exchanges of the replicas of all stages; a rank of several stages waits for those of each when it ends."""
        count = self.order.stages_per_rank
        if not isinstance(self.order, LoopedSchedule):
            return replica_exchanges(graph, plan, self.mesh, self.places)
        found = list[Exchange]()
        for number in range(count):
            views = [self.steps[kind].of_stages[number] for kind in self.kind_of]
            if plan.shares:
                views = [derived(one, modules=_of_last_batch(one)) for one in views]
            own = derived(
                graph,
                ranks=tuple(
                    derived(view, rank=rank.rank, ops=rank.ops) for view, rank in zip(views, graph.ranks, strict=True)
                ),
            )
            ends = {}
            for place, at in enumerate(self.pipeline_place):
                stage, step = self.owned(at)[number], self.steps[self.kind_of[place]]
                ends[place] = max(one.averaged for one in step.passes if one.stage == stage)
            for one in replica_exchanges(own, plan, self.mesh, self.places):
                before = dict(one.before)
                for place, after in one.after.items():
                    if after < ends[place]:
                        before[place] = (*before.get(place, ()), ends[place])
                found.append(derived(one, before=before))
        return tuple(sorted(found, key=lambda one: max(one.after.values())))

    def tied(self, parts: int) -> Iterator[Exchange]:
        """All-reduces of the gradients of parameters that several stages hold, once a step, of one part of ``parts``.

        As in Megatron's ``finalize_model_grads`` they come after all passes and after those of the replicas.
        """
        groups = tied_groups(((one.rank.gradients, one.tied) for one in self.stages), parts)
        for chain in self.chains:
            for name, own, size in groups:
                ranks = tuple(dict.fromkeys(self.order.rank_of(number, self.plan.degrees.pp) for number in own))
                if len(ranks) > 1:  # else the rank holds it once
                    members = tuple(chain[rank] for rank in ranks)
                    after = {self.places[rank]: self.step_of(rank).update - 1 for rank in members}
                    yield Exchange("all_reduce", size, after, name=f"{name}, tied", members=members, follows=True)


def _of_last_batch(rank: RankGraph) -> tuple[ModuleSpan, ...]:
    return tuple(rank.modules[place] for place in rank.module_batches[-1]) if rank.modules else ()
