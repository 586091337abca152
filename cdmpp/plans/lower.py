"""Lower: a plan and the work of one rank in; what every rank of the job computes and exchanges in one step out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from cdmpp.collectives.topology import Topology
from cdmpp.plans.groups import on_groups, replica_exchanges
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.placement import Placement, micro_batch_of, replicas_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.scheduled import Scheduled
from cdmpp.plans.shared_parameters import shards_of
from cdmpp.plans.sources.source import OpExchange, RankWork, StepSource, check_cast
from cdmpp.plans.stages import Stage, tied_groups
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import BACKWARD, FORWARD, WEIGHTS
from cdmpp.steps.step_graph import ModuleSpan, RankGraph, StepGraph
from cdmpp.steps.transforms.copies import with_copies
from cdmpp.steps.transforms.scale import shard_update

UNEVEN = (
    "replicas have unlike numbers of micro-batches: divide losses by their mean number, not by that of each replica, "
    "and run a loop of your own, since Megatron and torchtitan give each as many"
)
"""What a plan with shares needs."""


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
    return _Lowering(work, plan, topology, fold, merge).lowered()


class _Lowering(Placement):
    def lowered(self) -> Lowered:
        plan = self.plan
        strategy = plan.strategy.on_backend(self.topology.backend)
        check_cast(self.work, strategy, plan.degrees.size(*plan.replicating))
        ranks = tuple(replace(self.steps[kind].rank, rank=place) for place, kind in enumerate(self.kind_of))
        if plan.shares:  # nothing is exchanged in other batches, of which ranks have unlike numbers
            ranks = tuple(replace(one, modules=_of_last_batch(one)) for one in ranks)
        sizes = {name: getattr(plan.degrees, name) for name in plan.replicating}
        shards = shards_of(strategy, self.work.rank, sizes)
        graph = shard_update(StepGraph(ranks), shards)
        replicas = self.replicas(graph, replace(plan, strategy=strategy))
        if self.fold and any(one.kind == "push_pull" for one in replicas):
            return replace(self, fold=False).lowered()  # servers are on some ranks only
        tied, messages = tuple(self.tied(strategy.gradient_parts(sizes))), tuple(self.messages())
        late = tuple(one for one in messages if one.follows) if replicas and self.ends_backward else ()
        early = tuple(replace(one, follows=False) for one in messages if not (late and one.follows))
        own = graph.with_exchanges((*replicas, *tied)).exchanges
        ends = len(replicas)  # what is late waits for these
        before = (*early, *self.of_operators())
        updates = self.of_updates(shards, bool(ends))
        graph = replace(graph, exchanges=(*before, *own[:ends], *updates, *late, *own[ends:]))
        works = {place: self.work.on(self.kinds[kind].device) for place, kind in enumerate(self.kind_of)}
        copies = {place: work.copies for place, work in works.items() if work.copies is not None}
        if copies and strategy.copies_buffers:
            numbers = range(len(before), len(before) + ends)
            under_way_s = {number: self._under_way_s(graph.exchanges[number]) for number in numbers}
            graph = with_copies(graph, copies, numbers, under_way_s)
        warnings = self.work.warnings
        if plan.degrees.size(*plan.replicating) > 1:
            warnings += strategy.memory_warnings()
        if self.pipeline is not None and len(self.stages) > 1:
            warnings += self.order.warnings(plan.degrees.pp, self.pipeline.micro_batches)
            if replicas_of(plan) > 1:
                warnings += plan.strategy.pipeline_warnings(any(map(_is_forward_first, self.steps)))
        if plan.shares:
            warnings += (UNEVEN,)
        by_device = {name: self.on(name).stages for name in dict.fromkeys(plan.devices)}
        return Lowered(graph, self.mesh, self.places, self.stages, warnings, by_device)

    def _under_way_s(self, one: Exchange) -> float:
        """Seconds of an exchange of replicas that nothing disturbs."""
        return self.topology.cost(one.collective(self.topology.backend), one.participants).latency_s

    @property
    def ends_backward(self) -> bool:
        """True if a backward pass ends only once its gradients are averaged."""
        return self.plan.strategy.on_backend(self.topology.backend).ends_backward

    def replicas(self, graph: StepGraph, plan: Plan) -> tuple[Exchange, ...]:
        """Exchanges of the replicas of all stages; a rank of several stages waits for those of each when it ends."""
        count = self.order.stages_per_rank
        if not isinstance(self.order, LoopedSchedule):
            return replica_exchanges(graph, plan, self.mesh, self.places)
        found = list[Exchange]()
        for number in range(count):
            views = [self.steps[kind].of_stages[number] for kind in self.kind_of]
            if plan.shares:
                views = [replace(one, modules=_of_last_batch(one)) for one in views]
            own = replace(
                graph,
                ranks=tuple(
                    replace(view, rank=rank.rank, ops=rank.ops) for view, rank in zip(views, graph.ranks, strict=True)
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
                found.append(replace(one, before=before))
        return tuple(sorted(found, key=lambda one: max(one.after.values())))

    def messages(self) -> Iterator[Exchange]:
        """Yield the messages between stages, those of each direction in the order in which they are sent.

        The last one of each stage to the one before it follows the exchanges of its last backward pass.
        """
        if isinstance(self.order, LoopedSchedule):
            for chain in self.chains:
                yield from self._posted(chain, self.order)
            return
        for chain in self.chains:
            for stage in range(len(chain) - 1):
                sent, returned = self.stages[stage].sent_bytes, self.stages[stage + 1].returned_bytes
                for source, target, kind, sizes in (
                    (stage, stage + 1, FORWARD, sent),
                    (stage + 1, stage, BACKWARD, returned),
                ):
                    yield from self._sent(chain, source, target, kind, sizes)

    def _posted(self, chain: tuple[int, ...], order: LoopedSchedule) -> Iterator[Exchange]:
        """Messages of a schedule whose receives are posted ahead, rank after rank as each sends them.

        What a turn sends leaves when it has ended; the step ends once all is sent.
        """
        steps, kind = [self.step_of(rank) for rank in chain], self.kind(chain[0])
        many, batches = kind.many, kind.batches
        lists = order.lists(self.plan.degrees.pp, many)
        starts = [
            {(one.kind == FORWARD, one.stage, one.number): one.begin for one in step.passes if one.kind != WEIGHTS}
            for step in steps
        ]
        for rank, step in enumerate(steps):
            passes = iter(step.passes)
            for number in range(batches):
                for turn in lists.turns[rank]:
                    own = [next(passes) for _ in turn]
                    left = max(one.averaged if self.ends_backward else one.end for one in own)
                    left = max(left, own[-1].end)
                    for action in turn:
                        message = lists.message(action)
                        if message is None or not lists.is_sent(message):
                            continue
                        target, is_forward = lists.owners[message.stage], message.kind == FORWARD
                        stage, batch = self.stages[action.stage], number * many
                        begin = starts[target][is_forward, message.stage, batch + message.micro_batch]
                        turned = number * len(steps[target].passes) // batches + lists.posts[message]
                        posted = steps[target].passes[turned].begin - 1
                        members = chain[rank], chain[target]
                        sender, receiver = (self.places[one] for one in members)
                        for size in stage.sent_bytes if is_forward else stage.returned_bytes:
                            yield Exchange(
                                "send_recv", size, {sender: left, receiver: posted},
                                {receiver: (begin,), sender: (step.update,)},
                                f"{message.kind} to stage {message.stage}, micro-batch {batch + action.micro_batch}",
                                group=f"{sender}->{receiver}", members=members,
                            )  # fmt: skip

    def _sent(
        self, chain: tuple[int, ...], source: int, target: int, kind: str, sizes: tuple[int, ...]
    ) -> Iterator[Exchange]:
        is_ahead = self.pipeline is not None and self.pipeline.overlap
        members = chain[source], chain[target]
        sender, receiver = (self.places[rank] for rank in members)
        step, passes = self.step_of(members[0]), self.step_of(members[1]).passes
        taken = {one.number: at for at, one in enumerate(passes) if one.kind == kind}
        last = max(at for at, one in enumerate(step.passes) if one.kind == kind)
        for at, one in enumerate(step.passes):
            if one.kind != kind:
                continue
            place = taken[one.number]
            posted = passes[max(place - 1, 0) if is_ahead else place].begin - 1
            before = {receiver: (passes[place].begin,)}
            if not is_ahead:
                before[sender] = (step.turn(at),)
            for size in sizes:
                yield Exchange(
                    "send_recv", size, {sender: one.end, receiver: posted}, before,
                    f"{kind} to stage {target}, micro-batch {one.number}", group=f"{sender}->{receiver}",
                    follows=kind == BACKWARD and at == last, members=members,
                )  # fmt: skip

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

    def of_operators(self) -> Iterator[Exchange]:
        """Exchanges of divided operators, for each micro-batch, stage after stage."""
        for kind, step in enumerate(self.steps):
            own = [place for place, of in enumerate(self.kind_of) if of == kind]
            last, parts = max(one.number for one in step.passes), self.on(self.kinds[kind].device).parts
            for one in step.passes:
                part = parts[one.stage].of(one.number == last, one.is_divided)
                for found in part.operators:
                    if part.rank.ops[found.before[0]].phase == one.kind:
                        after = one.begin - 1 if found.after == START else one.places[found.after]
                        before = tuple(one.places[place] for place in found.before)
                        yield from self._placed(found, dict.fromkeys(own, after), dict.fromkeys(own, before))

    def of_updates(self, shards: float, follow: bool) -> Iterator[Exchange]:
        """Exchanges between passes and update, once a step, of the gradients that a rank updates: one of ``shards``.

        ``follow``: whether they wait for those of the replicas. A gradient that Adam's moments and their product read,
        so that ranks sum it up three times, is read once by a plan's fused kernel; clipping reads it once more.
        """
        for kind, step in enumerate(self.steps):
            own, parts = (
                [place for place, of in enumerate(self.kind_of) if of == kind],
                self.on(self.kinds[kind].device).parts,
            )
            ends = dict.fromkeys(own, step.update - 1), dict.fromkeys(own, (step.update,))
            for stage in dict.fromkeys(one.stage for one in step.passes):
                operators = [found for found in parts[stage].last.operators if found.is_of_update]
                reads = Counter(found.name for found in operators)
                for name, count in reads.items():
                    kept = count - 2 if self.plan.update == "fused" and count >= 3 else count
                    for found in [one for one in operators if one.name == name][:kept]:
                        one = replace(found, bytes=math.ceil(found.bytes / shards), follows=follow)
                        yield from self._placed(one, *ends)

    def _placed(
        self, found: OpExchange, after: Mapping[int, int], before: Mapping[int, tuple[int, ...]]
    ) -> Iterator[Exchange]:
        """The exchange in each group along its degree; a message from each rank to its neighbour, if it has one.

        Collectives have a process group of their own, also where it has the same ranks as that of the replicas.
        """
        one = Exchange(
            found.kind,
            found.bytes,
            after,
            before,
            found.name,
            group="" if found.shift else found.degree,
            follows=found.follows,
        )
        if not found.shift:
            yield from on_groups(one, (found.degree,), self.mesh, self.places)
            return
        seen = set[tuple[int, int]]()
        for group in self.mesh.groups(found.degree):
            for members in found.pairs(group):
                pair = self.places[members[0]], self.places[members[1]]
                if pair[0] in after and pair not in seen:
                    seen.add(pair)
                    own = {place: after[place] for place in pair}, {place: before[place] for place in pair}
                    yield replace(one, after=own[0], before=own[1], group=f"{pair[0]}->{pair[1]}", members=members)


def _of_last_batch(rank: RankGraph) -> tuple[ModuleSpan, ...]:
    return tuple(rank.modules[place] for place in rank.module_batches[-1]) if rank.modules else ()


def _is_forward_first(step: Scheduled) -> bool:
    """Return True if all forward passes of one of several stages come before its first backward pass."""
    for stage in {one.stage for one in step.passes}:
        kinds = [one.kind == FORWARD for one in step.passes if one.stage == stage and one.batch == 0]
        many = sum(kinds)
        if many > 1 and all(kinds[:many]):
            return True
    return False
