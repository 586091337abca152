"""Stage costs: what each stage of a pipeline computes, exchanges and holds, for several micro-batches at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError
from cdmpp.plans.allocator import CONTEXT
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.memory import peak_parts, rounded_bytes
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.overlap import Floats, exposed_s
from cdmpp.plans.sources.source import OpExchange
from cdmpp.plans.stage_structure import StageStructure, WorkColumns, between, stacked
from cdmpp.plans.stages import tied_groups
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.strategy import Strategy

GRADIENTS, PARAMETERS, HALOS, SPLIT, SENDS = PARTS = ("gradients", "parameters", "halos", "split operators", "stages")
"""Kinds of communication of a step, by what is sent."""
_PART_OF = {"all_gather": PARAMETERS, "broadcast": PARAMETERS}


def _part_of(one: OpExchange) -> str:
    return HALOS if one.degree == "spatial" else SPLIT


@dataclass(frozen=True)
class ReplicaCosts:
    """What replicas exchange to keep their parameters alike; a row a micro-batch, a column a stage."""

    part_s: Mapping[str, Floats]
    """One of ``PARTS`` -> seconds of each stage in one step, hidden or not; no rows."""
    start_up_s: Floats
    """The part of them that does not depend on sizes; of each stage."""
    exposed_s: Floats
    """Seconds by which they delay the end of a step."""
    shards: int
    """Ranks that divide the update."""
    tied: Sequence[tuple[tuple[int, ...], float]]
    """Stages that hold the same parameters, and the seconds in which they then sum its gradients."""
    low: float
    high: float
    """Factors from their time to the ends of its interval of 80 %."""


@dataclass(frozen=True)
class StageCosts:
    """Costs of the stages of one division of the model; of each array a row a micro-batch, a column a stage."""

    works: Sequence[WorkColumns]
    """What one rank runs for each size of a micro-batch; the ops are the same, their seconds and bytes differ."""
    structure: StageStructure
    topology: Topology

    @property
    def degrees(self) -> ParallelDegrees:
        """Return the degrees that divide the model; those of replicas are 1."""
        return self.structure.degrees

    @cached_property
    def compute_s(self) -> Floats:
        """Seconds of each op of the whole rank with its pauses."""
        return np.array([one.seconds for one in self.works])

    @cached_property
    def gaps_s(self) -> Floats:
        """Pause after each op of the whole rank."""
        return np.array([one.gaps_s for one in self.works])

    @cached_property
    def once_s(self) -> Floats:
        """Seconds that a step takes once; a number a micro-batch."""
        return np.array([one.work.rank.start_s + one.work.rank.tail_s for one in self.works])

    @cached_property
    def split_s(self) -> Mapping[str, Floats]:
        """Part of the communication -> seconds that divided operators exchange after each op of the whole rank."""
        found = dict[str, Floats]()
        for number, one in enumerate(self.works[0].work.exchanges):
            sizes = np.array([work.work.exchanges[number].bytes for work in self.works], np.float64)
            each = found.setdefault(_part_of(one), np.zeros_like(self.compute_s))
            each[:, max(one.after, 0)] += self._operator_s(one, sizes)
        return found

    @cached_property
    def split_start_up_s(self) -> Floats:
        """Return the part of ``split_s`` that does not depend on sizes, but for halos; after each op."""
        found = np.zeros_like(self.compute_s)
        for one in self.works[0].work.exchanges:
            if _part_of(one) == SPLIT:
                found[:, max(one.after, 0)] += self._operator_s(one, np.ones(1))
        return found

    def _operator_s(self, one: OpExchange, sizes: Floats) -> Floats:
        """Seconds of an exchange of a divided operator, between the ranks that are farthest apart."""
        group = Mesh(self.degrees).group_of(0, (one.degree,))
        members = {self.topology.shape(pair): pair for pair in one.pairs(group)} if one.shift else {None: group}
        slowest_s: Floats = np.max([self.topology.latency_s(one.kind, sizes, own) for own in members.values()], axis=0)
        return slowest_s

    @cached_property
    def busy_s(self) -> Floats:
        """Seconds of each op of the whole rank, and of what divided operators exchange after it."""
        return self.compute_s + sum(self.split_s.values(), np.zeros_like(self.compute_s))

    @cached_property
    def received_s(self) -> Mapping[str, Floats]:
        """Phase -> seconds of the messages of one micro-batch from the stage before, and of gradients from the next."""
        stages, mesh = self.structure.stages, Mesh(self.degrees)
        found = {phase: np.zeros((len(self.works), len(stages))) for phase in ("forward", "backward")}
        firsts = mesh.group_of(0, ("pp",))
        for place, (sender, receiver) in enumerate(zip(firsts, firsts[1:], strict=False)):
            for size in self._messages(stages[place].sent):
                found["forward"][:, place + 1] += self.topology.latency_s("send_recv", size, (sender, receiver))
            for size in self._messages(stages[place + 1].returned):
                found["backward"][:, place] += self.topology.latency_s("send_recv", size, (receiver, sender))
        return found

    @cached_property
    def received_start_up_s(self) -> Floats:
        """Return the part of the messages of one micro-batch that does not depend on their sizes; of each stage."""
        stages, firsts = self.structure.stages, Mesh(self.degrees).group_of(0, ("pp",))
        found = np.zeros(len(stages))
        for place, pair in enumerate(zip(firsts, firsts[1:], strict=False)):
            least_s = float(self.topology.latency_s("send_recv", np.ones(1), pair)[0])
            found[place + 1] += least_s * len(self._messages(stages[place].sent))
            found[place] += least_s * len(self._messages(stages[place + 1].returned))
        return found

    def _messages(self, sizes: tuple[tuple[int, ...], ...]) -> list[Floats]:
        """Bytes of each tensor for each micro-batch, of those for the smallest and the largest one."""
        low, high = self.structure.low.batch, self.structure.high.batch
        share = np.array([(one.batch - low) / max(high - low, 1) for one in self.works])
        return [first + share * (last - first) for first, last in zip(*sizes, strict=True)]

    @cached_property
    def received_bytes(self) -> Floats:
        """Bytes that the neighbours of a stage send for one micro-batch; (stages, micro-batches)."""
        stages, found = self.structure.stages, np.zeros((len(self.structure.stages), len(self.works)))
        for number in range(len(stages)):
            sent = (stages[number - 1].sent,) if number else ()
            returned = (stages[number + 1].returned,) if number + 1 < len(stages) else ()
            for sizes in (*sent, *returned):
                found[number] += sum(self._messages(sizes), np.zeros(len(self.works)))
        return found

    @cached_property
    def pass_s(self) -> Mapping[str, Floats]:
        """Phase -> seconds of one pass of one micro-batch, with its exchanges, on each stage."""
        return {phase: self.phase_s(phase, self.busy_s) + self.received_s[phase] for phase in ("forward", "backward")}

    @cached_property
    def update_s(self) -> Floats:
        """Seconds of the update of each stage, by a rank that holds all of it."""
        return self.phase_s("update", self.compute_s)

    def phase_s(self, phase: str, seconds: Floats) -> Floats:
        """Sum ``seconds`` of the ops of one phase, given for each op of the whole rank."""
        found = [seconds[:, one.places[one.is_in(phase)]].sum(axis=1) for one in self.structure.stages]
        shares = np.array([one.share for one in self.structure.stages]) if phase == "update" else 1.0
        return np.stack(found, axis=1) * shares

    @cached_property
    def _replicas(self) -> dict[tuple[object, ...], ReplicaCosts]:
        return {}

    def replicas(
        self, strategy: Strategy, degrees: ParallelDegrees, many: Sequence[ParallelDegrees],
        replicating: tuple[str, ...], batches: int = 1,
    ) -> ReplicaCosts:  # fmt: skip
        """Return what ``replica_costs`` says of ``degrees``, which are among ``many``: all are worked out at once."""
        key = (strategy, replicating, batches)
        if (*key, degrees) not in self._replicas:
            try:
                found = self.replica_costs(strategy, many, replicating, batches)
            except CdmppError:  # of some of them
                many, found = [degrees], self.replica_costs(strategy, [degrees], replicating, batches)
            self._replicas.update({(*key, one): costs for one, costs in zip(many, found, strict=True)})
        return self._replicas[*key, degrees]

    def replica_costs(
        self, strategy: Strategy, many: Sequence[ParallelDegrees], replicating: Sequence[str], batches: int = 1
    ) -> list[ReplicaCosts]:
        """Return what the strategy of the replicas adds to one step, for each of several degrees of the replicas.

        Args:
            strategy: of the replicas.
            many: degrees of the job; those that divide the model are alike.
            replicating: all degrees along which ranks share parameters.
            batches: whose gradients are added up, by stages that are no pipeline.
        """
        sizes = [{name: getattr(one, name) for name in replicating} for one in many]
        shards = np.array([strategy.shards(one) for one in sizes])
        found, each = dict[object, tuple[Floats, Floats, Floats]](), list[tuple[Floats, Floats, Floats]]()
        for number, stage in zip(self.structure.alike, self.structure.stages, strict=True):
            one = stage.accumulated(batches)
            seconds, gaps_s = self.busy_s[:, one.places], self.gaps_s[:, one.places]
            key = (number, seconds.tobytes(), gaps_s.tobytes())  # many stages are alike
            if key not in found:
                step = StepGraph((one.graph,))
                listed = (
                    strategy.exchanges_of(step, sizes)
                    if many[0].size(*replicating) > 1
                    else ((), np.zeros((0, len(many)), np.int64))
                )
                if listed is None:  # each has other exchanges
                    return [self.replica_costs(strategy, [own], replicating, batches)[0] for own in many]
                exchanges, sent = listed
                costs_s, least_s, ends_s = self._costs_s(exchanges, sent, [Mesh(own) for own in many], replicating)
                seconds = np.repeat(seconds[np.newaxis], len(many), axis=0)
                seconds[:, :, one.is_in("update")] *= (one.share / shards)[:, np.newaxis, np.newaxis]
                seconds = seconds.reshape(-1, seconds.shape[2])  # a row a micro-batch of each of ``many``
                starts_s = np.concatenate([np.zeros((len(seconds), 1)), np.cumsum(seconds, axis=1)], axis=1)
                exposed = exposed_s(
                    starts_s, np.tile(gaps_s, (len(many), 1)), exchanges, np.repeat(costs_s, len(self.works), axis=1),
                    one.graph.synchronized,
                )  # fmt: skip
                kinds = np.array([_PART_OF.get(exchange.kind, GRADIENTS) for exchange in exchanges])
                parts = [costs_s[kinds == part].sum(axis=0) for part in (GRADIENTS, PARAMETERS)]
                found[key] = (np.array([*parts, least_s]), exposed.reshape(len(many), -1), ends_s)
            each.append(found[key])
        part_s = np.stack([one[0] for one in each], axis=2)  # (parts, many, stages)
        exposed_all_s = np.stack([one[1] for one in each], axis=2)  # (many, micro-batches, stages)
        ends_s = np.sum([one[2] for one in each], axis=0)
        shared, made = [(one.graph, one.tied) for one in self.structure.stages], list[ReplicaCosts]()
        for place, degrees in enumerate(many):
            by_part = {GRADIENTS: part_s[0, place], PARAMETERS: part_s[1, place]}
            chain, tied = Mesh(degrees).group_of(0, ("pp",)), list[tuple[tuple[int, ...], float]]()
            for _, numbers, size in tied_groups(shared, strategy.gradient_parts(sizes[place])):
                members = tuple(chain[number] for number in numbers)
                collective = Collective("all_reduce", size, len(members), self.topology.backend)
                estimate = self.topology.cost(collective, members)
                tied.append((numbers, estimate.latency_s))
                by_part[GRADIENTS][list(numbers)] += estimate.latency_s
                part_s[2, place, list(numbers)] += min(
                    estimate.latency_s, float(self.topology.latency_s("all_reduce", np.array([1]), members)[0])
                )
                ends_s[place] += [estimate.latency_s, estimate.low_s, estimate.high_s]
            middle, *bounds = ends_s[place].tolist()
            low, high = (bound / middle if middle else 1.0 for bound in bounds)
            exposed = exposed_all_s[place]
            made.append(ReplicaCosts(by_part, part_s[2, place], exposed, int(shards[place]), tied, low, high))
        return made

    def _costs_s(
        self, exchanges: Sequence[Exchange], sent: NDArray[np.int64], meshes: Sequence[Mesh], replicating: Sequence[str]
    ) -> tuple[Floats, Floats, Floats]:
        """Seconds of each exchange by itself on each mesh, those of one kind and group priced at once.

        Also the start-up of all, and the time of the largest ones with the ends of their intervals; a row a mesh.
        """
        costs_s, least_s, ends_s = np.zeros(sent.shape), np.zeros(len(meshes)), np.zeros((len(meshes), 3))
        groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for number, one in enumerate(exchanges):
            groups.setdefault((one.kind, one.along or tuple(replicating)), []).append(number)
        for (kind, along), numbers in groups.items():
            for place, mesh in enumerate(meshes):
                members = mesh.group_of(0, along)
                sizes = np.array([1, *sent[numbers, place]])
                found = self.topology.latency_s(kind, sizes, members)
                costs_s[numbers, place] = found[1:]
                least_s[place] += float(np.minimum(found[0], found[1:]).sum())
                largest = Collective(kind, int(sizes.max()), len(members), self.topology.backend)
                estimate = self.topology.cost(largest, members)
                ends_s[place] += [estimate.latency_s, estimate.low_s, estimate.high_s]
        return costs_s, least_s, ends_s

    def peak_bytes(
        self, strategy: Strategy, sizes: Mapping[str, int], which: np.ndarray, many: np.ndarray, in_flight: np.ndarray,
        kept: np.ndarray,
    ) -> Floats:  # fmt: skip
        """Return the most bytes of the heaviest stage for several plans; NaN where memory is unknown.

        Args:
            strategy: of the replicas.
            sizes: degree -> its ranks, of all degrees along which ranks share parameters.
            which: place of the micro-batch of each plan.
            many: forward passes of one step of each plan.
            in_flight: micro-batches whose activations a stage holds; a row a plan, a column a stage.
            kept: micro-batches whose outputs a stage keeps; the same.
        """
        stages, ends = self.structure.stages, self.structure.ends
        if not ends:
            return np.full(len(which), np.nan)
        (low_held, low_live), (most_held, most_live) = ends
        low, high = (batch for batch, _, _ in stages[0].live)
        batches = np.array([work.batch for work in self.works], np.float64)[which]
        share, piped = (batches - low) / max(high - low, 1), len(stages) > 1
        received = self.received_bytes[:, which]
        returned = np.stack([sum(self._messages(one.returned), np.zeros(len(self.works))) for one in stages])[:, which]
        peak = np.zeros((len(stages), len(which)))
        for is_many in {*(many > 1).tolist()}:
            rows = (many > 1) == is_many
            own_of = {
                number: strategy.rank_bytes(stages[number].live[0][1], stages[number].graph.modules, sizes, 1 + is_many)
                for number in {*self.structure.alike}
            }
            held, live = between(low_held, most_held, share[rows]), between(low_live, most_live, share[rows])
            peak[:, rows] = peak_parts(
                held, stacked([own_of[number] for number in self.structure.alike]), live, many[rows] if piped else 1,
                in_flight[rows].T, 1 if piped else many[rows], received[:, rows],
                returned[:, rows], kept[rows].T,
            ).peak_bytes  # fmt: skip
            if self.structure.is_gpu:
                more = {
                    number: CONTEXT + rounded_bytes(stages[number].live[0][1], stages[number].graph.gradients, own)
                    for number, own in own_of.items()
                }
                peak[:, rows] += np.array([[more[number]] for number in self.structure.alike])
        return peak.max(axis=0)
