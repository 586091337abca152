"""Stage costs: what each stage of a pipeline computes, exchanges and holds, for several micro-batches at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.topology import Topology
from cdmpp.plans.allocator import CONTEXT
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.memory import peak_parts, rounded_bytes
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.overlap import Floats, exposed_s
from cdmpp.plans.stage_structure import StageStructure, WorkColumns, between
from cdmpp.plans.stages import tied_groups
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.strategy import Strategy

GRADIENTS, PARAMETERS, HALOS, SPLIT, SENDS = PARTS = ("gradients", "parameters", "halos", "split operators", "stages")
"""Kinds of communication of a step, by what is sent."""
_PART_OF = {"all_gather": PARAMETERS, "broadcast": PARAMETERS}


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
        found, mesh = dict[str, Floats](), Mesh(self.degrees)
        for number, one in enumerate(self.works[0].work.exchanges):
            sizes = np.array([work.work.exchanges[number].bytes for work in self.works], np.float64)
            group = mesh.group_of(0, (one.degree,))
            members = {self.topology.shape(pair): pair for pair in one.pairs(group)} if one.shift else {None: group}
            slowest_s = np.max([self.topology.latency_s(one.kind, sizes, own) for own in members.values()], axis=0)
            part = HALOS if one.degree == "spatial" else SPLIT
            each = found.setdefault(part, np.zeros_like(self.compute_s))
            each[:, max(one.after, 0)] += slowest_s
        return found

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

    def _messages(self, sizes: tuple[tuple[int, ...], ...]) -> list[Floats]:
        """Bytes of each tensor for each micro-batch, of those for the smallest and the largest one."""
        low, high = self.structure.low.batch, self.structure.high.batch
        share = np.array([(one.batch - low) / max(high - low, 1) for one in self.works])
        return [first + share * (last - first) for first, last in zip(*sizes, strict=True)]

    def _received_bytes(self, number: int) -> Floats:
        """Bytes that the neighbours of a stage send for one micro-batch; a number a micro-batch."""
        stages, found = self.structure.stages, np.zeros(len(self.works))
        sent = (stages[number - 1].sent,) if number else ()
        returned = (stages[number + 1].returned,) if number + 1 < len(stages) else ()
        for sizes in (*sent, *returned):
            found += sum(self._messages(sizes), np.zeros(len(self.works)))
        return found

    def pass_s(self, phase: str) -> Floats:
        """Return the seconds of one pass of one micro-batch, with its exchanges, on each stage."""
        return self.phase_s(phase, self.busy_s) + self.received_s[phase]

    def phase_s(self, phase: str, seconds: Floats) -> Floats:
        """Sum ``seconds`` of the ops of one phase, given for each op of the whole rank."""
        found = [seconds[:, one.places[one.is_in(phase)]].sum(axis=1) for one in self.structure.stages]
        shares = np.array([one.share for one in self.structure.stages]) if phase == "update" else 1.0
        return np.stack(found, axis=1) * shares

    def replica_costs(
        self, strategy: Strategy, degrees: ParallelDegrees, sizes: Mapping[str, int], batches: int = 1
    ) -> ReplicaCosts:
        """Return what the strategy of the replicas adds to one step.

        Args:
            strategy: of the replicas.
            degrees: of the job.
            sizes: degree -> its ranks, of all degrees along which ranks share parameters.
            batches: whose gradients are added up, by stages that are no pipeline.
        """
        mesh, shards = Mesh(degrees), strategy.shards(sizes)
        found, each = dict[object, tuple[list[float], Floats, Floats]](), list[tuple[list[float], Floats, Floats]]()
        for one in (stage.accumulated(batches) for stage in self.structure.stages):
            seconds, gaps_s = self.busy_s[:, one.places], self.gaps_s[:, one.places]
            key = (one.key, seconds.tobytes(), gaps_s.tobytes())  # many stages are alike
            if key not in found:
                step = StepGraph((one.graph,))
                if degrees.size(*sizes) > 1:
                    step = replace(step, exchanges=strategy.exchanges(step, sizes))
                costs_s, least_s, ends_s = self._costs_s(step, mesh, tuple(sizes))
                seconds[:, one.is_in("update")] *= one.share / shards
                starts_s = np.concatenate([np.zeros((len(seconds), 1)), np.cumsum(seconds, axis=1)], axis=1)
                exposed = exposed_s(starts_s, gaps_s, step.exchanges, costs_s, one.graph.synchronized)
                kinds = np.array([_PART_OF.get(exchange.kind, GRADIENTS) for exchange in step.exchanges])
                parts = [float(costs_s[kinds == part].sum()) for part in (GRADIENTS, PARAMETERS)]
                found[key] = ([*parts, least_s], exposed, ends_s)
            each.append(found[key])
        by_part = dict(zip((GRADIENTS, PARAMETERS, "start-up"), np.array([one[0] for one in each]).T, strict=True))
        ends_s, tied = np.sum([one[2] for one in each], axis=0), list[tuple[tuple[int, ...], float]]()
        chain = mesh.group_of(0, ("pp",))
        shared = [(one.graph, one.tied) for one in self.structure.stages]
        for _, numbers, size in tied_groups(shared, strategy.gradient_parts(sizes)):
            members = tuple(chain[number] for number in numbers)
            estimate = self.topology.cost(Collective("all_reduce", size, len(members), self.topology.backend), members)
            tied.append((numbers, estimate.latency_s))
            by_part[GRADIENTS][list(numbers)] += estimate.latency_s
            by_part["start-up"][list(numbers)] += min(
                estimate.latency_s, float(self.topology.latency_s("all_reduce", np.array([1]), members)[0])
            )
            ends_s = ends_s + [estimate.latency_s, estimate.low_s, estimate.high_s]
        low, high = (ends_s[1:] / ends_s[0]).tolist() if ends_s[0] else (1.0, 1.0)
        start_up_s = by_part.pop("start-up")
        return ReplicaCosts(by_part, start_up_s, np.stack([one[1] for one in each], axis=1), shards, tied, low, high)

    def _costs_s(self, step: StepGraph, mesh: Mesh, replicating: tuple[str, ...]) -> tuple[Floats, float, Floats]:
        """Seconds of each exchange by itself, those of one kind and group priced at once.

        Also the start-up of all, and the time of the largest ones with the ends of their intervals.
        """
        costs_s, least_s, ends_s = np.zeros(len(step.exchanges)), 0.0, np.zeros(3)
        groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for number, one in enumerate(step.exchanges):
            groups.setdefault((one.kind, one.along or replicating), []).append(number)
        for (kind, along), numbers in groups.items():
            members = mesh.group_of(0, along)
            sizes = np.array([1, *(step.exchanges[number].bytes for number in numbers)])
            found = self.topology.latency_s(kind, sizes, members)
            costs_s[numbers] = found[1:]
            least_s += float(np.minimum(found[0], found[1:]).sum())
            largest = Collective(kind, int(sizes.max()), len(members), self.topology.backend)
            estimate = self.topology.cost(largest, members)
            ends_s += [estimate.latency_s, estimate.low_s, estimate.high_s]
        return costs_s, least_s, ends_s

    def peak_bytes(
        self, strategy: Strategy, sizes: Mapping[str, int], which: np.ndarray, many: np.ndarray, in_flight: np.ndarray,
        kept: np.ndarray,
    ) -> Floats:  # fmt: skip
        """Return the most bytes of the heaviest stage for several plans; NaN where memory is unknown.

        Args:
            strategy: of the replicas.
            sizes: as of ``replica_costs``.
            which: place of the micro-batch of each plan.
            many: forward passes of one step of each plan.
            in_flight: micro-batches whose activations a stage holds; a row a plan, a column a stage.
            kept: micro-batches whose outputs a stage keeps; the same.
        """
        found, piped = [], len(self.structure.stages) > 1
        batches = np.array([work.batch for work in self.works], np.float64)[which]
        for number, one in enumerate(self.structure.stages):
            if not one.live:
                return np.full(len(which), np.nan)
            (low, held, live), (high, most_held, most_live) = one.live
            share, received = (batches - low) / max(high - low, 1), self._received_bytes(number)[which]
            returned = sum(self._messages(one.returned), np.zeros(len(self.works)))[which]
            peak = np.zeros(len(which))
            for is_many in (False, True):
                rows = (many > 1) == is_many
                own = strategy.rank_bytes(held, one.graph.modules, sizes, 2 if is_many else 1)
                peak[rows] = peak_parts(
                    between(held, most_held, share[rows]), own, between(live, most_live, share[rows]),
                    many[rows] if piped else 1, in_flight[rows, number], 1 if piped else many[rows], received[rows],
                    returned[rows], kept[rows, number],
                ).peak_bytes  # fmt: skip
                if self.structure.is_gpu:
                    peak[rows] += CONTEXT + rounded_bytes(held, one.graph.gradients, own)
            found.append(peak)
        return np.max(found, axis=0)
