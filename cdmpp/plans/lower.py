"""Lower: a plan and the work of one rank in; what every rank of the job computes and exchanges in one step out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cdmpp.collectives.topology import Topology
from cdmpp.plans.groups import on_groups, replica_exchanges
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.placement import Placement, micro_batch_of, replicas_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.source import OpExchange, RankWork, StepSource
from cdmpp.plans.stages import Stage, tied_groups
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.schedule import BACKWARD, FORWARD
from cdmpp.steps.step_graph import StepGraph
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
    """Each stage with what one of its ranks runs for one micro-batch; without a pipeline there is one stage."""
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


class _Lowering(Placement):
    def lowered(self) -> Lowered:
        plan = self.plan
        strategy = plan.strategy.on_backend(self.topology.backend)
        ranks = tuple(replace(self.steps[stage].rank, rank=place) for place, stage in enumerate(self.stage_of))
        sizes = {name: getattr(plan.degrees, name) for name in plan.replicating}
        graph = shard_update(StepGraph(ranks), strategy.shards(sizes))
        replicas = replica_exchanges(graph, replace(plan, strategy=strategy), self.mesh, self.places)
        if self.fold and any(one.kind == "push_pull" for one in replicas):
            return replace(self, fold=False).lowered()  # servers are on some ranks only
        tied, messages = tuple(self.tied(strategy.gradient_parts(sizes))), tuple(self.messages())
        late = tuple(one for one in messages if one.follows) if replicas and strategy.ends_backward else ()
        early = tuple(replace(one, follows=False) for one in messages if not (late and one.follows))
        own = graph.with_exchanges((*replicas, *tied)).exchanges
        ends = len(replicas)  # what is late waits for these
        graph = replace(graph, exchanges=(*early, *self.of_operators(), *own[:ends], *late, *own[ends:]))
        warnings = self.work.warnings
        if plan.degrees.size(*plan.replicating) > 1:
            warnings += strategy.memory_warnings()
        if self.pipeline is not None and len(self.stages) > 1:
            order, count, many = self.pipeline.order, len(self.stages), self.pipeline.micro_batches
            warnings += order.warnings(count, many)
            if replicas_of(plan) > 1:
                warnings += plan.strategy.pipeline_warnings(1 < many == order.live_micro_batches(0, count, many))
        return Lowered(graph, self.mesh, self.places, self.stages, warnings)

    def messages(self) -> Iterator[Exchange]:
        """Yield the messages between stages, those of each direction in the order in which they are sent.

        The last one of each stage to the one before it follows the exchanges of its last backward pass.
        """
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
        last = max(at for at, one in enumerate(self.steps[source].passes) if one.kind == kind)
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
                    follows=kind == BACKWARD and at == last, members=members,
                )  # fmt: skip

    def tied(self, parts: int) -> Iterator[Exchange]:
        """All-reduces of the gradients of parameters that several stages hold, once a step, of one part of ``parts``.

        As in Megatron's ``finalize_model_grads`` they come after all passes and after those of the replicas.
        """
        groups = tied_groups(((one.rank.gradients, one.tied) for one in self.stages), parts)
        ends = [max(one.end for one in step.passes) for step in self.steps] if groups else []
        for chain in self.chains:
            for name, own, size in groups:
                after = {self.places[chain[number]]: ends[number] for number in own}
                members = tuple(chain[number] for number in own)
                yield Exchange("all_reduce", size, after, name=f"{name}, tied", members=members, follows=True)

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
            for members in found.pairs(group):
                pair = self.places[members[0]], self.places[members[1]]
                if pair[0] in after and pair not in seen:
                    seen.add(pair)
                    own = {place: after[place] for place in pair}, {place: before[place] for place in pair}
                    yield replace(one, after=own[0], before=own[1], group=f"{pair[0]}->{pair[1]}", members=members)
