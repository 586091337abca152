"""Stage costs: what each stage of a pipeline computes and exchanges for several micro-batches at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cdmpp.collectives.topology import Topology
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.group_costs import GroupCosts
from cdmpp.plans.live_bytes import LiveBytes
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.op_seconds import HALOS, SPLIT, OpSeconds
from cdmpp.plans.overlap import Floats
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.plans.stage_structure import StageStructure
from cdmpp.plans.timeline import Timeline
from cdmpp.plans.work_columns import WorkColumns
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import Schedule

GRADIENTS, PARAMETERS, SENDS = "gradients", "parameters", "stages"
PARTS = (GRADIENTS, PARAMETERS, HALOS, SPLIT, SENDS)
"""Kinds of communication of a step, by what is sent."""


def layout_of(order: Schedule) -> tuple[object, ...]:
    """Return what is equal for schedules under which stages lie on ranks alike, and send alike."""
    is_in_v = isinstance(order, LoopedSchedule) and order.is_in_v
    return order.stages_per_rank, order.is_looped, is_in_v, order.divides_backward


@dataclass(frozen=True)
class StageCosts:
    """Costs of the stages of one division of the model; of each array a row a micro-batch, a column a stage."""

    works: Sequence[WorkColumns]
    """One rank runs this for each size of a micro-batch; the ops are the same, their seconds and bytes differ."""
    structure: StageStructure
    groups: GroupCosts
    """Exchanges between the ranks of the job take this."""
    degrees: ParallelDegrees
    """Those that divide the model; those of replicas are 1."""
    replicas: int = 1
    """Ranks of a stage stand next to each other: neighbours in the pipeline are so many times farther apart."""
    order: Schedule = SCHEDULES["1f1b"]()  # noqa: RUF009
    """It places stages on ranks; others with the same ``layout_of`` cost as much."""

    @property
    def ranks(self) -> int:
        """Return the ranks of the pipeline."""
        return self.structure.count // self.order.stages_per_rank

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """Rank of each stage along the pipeline."""
        return tuple(self.order.rank_of(stage, self.ranks) for stage in range(self.structure.count))

    @property
    def topology(self) -> Topology:
        """Return the links between the ranks of the job."""
        return self.groups.topology

    @cached_property
    def chain(self) -> tuple[int, ...]:
        """Ranks of the job that pass micro-batches on to each other."""
        return Mesh(replace(self.degrees, dp_replicate=self.replicas)).group_of(0, ("pp",))

    @cached_property
    def ops(self) -> OpSeconds:
        """Seconds that the ops of the whole rank take; pipelines of any stages share it."""
        degrees = replace(self.degrees, pp=1)
        return self.groups.known(self.works, degrees, lambda: OpSeconds(self.works, degrees, self.topology))

    @cached_property
    def once_s(self) -> Floats:
        """Seconds that a step takes once; a number a micro-batch."""
        return np.array([one.times.once_s for one in self.works])

    @cached_property
    def alike(self) -> tuple[list[int], list[int]]:
        """Stages that differ in more than names, and the place among them of the one that each stage is like."""
        found, firsts, numbers = dict[object, int](), list[int](), list[int]()
        like = self.ops.alike
        for stage, (kind, places) in enumerate(zip(self.structure.alike, self.structure.places, strict=True)):
            key = kind, like[places].tobytes()
            if key not in found:
                found[key] = len(firsts)
                firsts.append(stage)
            numbers.append(found[key])
        return firsts, numbers

    @cached_property
    def _timelines(self) -> dict[tuple[int, int], Timeline]:
        return {}

    def timeline(self, stage: int, batches: int) -> Timeline:
        """Return when the ops of a stage run that adds up the gradients of several batches."""
        if (stage, batches) not in self._timelines:
            own = self.structure.kinds[self.structure.alike[stage]].accumulated(batches)
            places = self.structure.places[stage][own.places]
            self._timelines[stage, batches] = Timeline.of(
                self.ops.busy_s[:, places].T, self.ops.gaps_s[:, places].T, own.is_update
            )
        return self._timelines[stage, batches]

    @cached_property
    def split_start_up_s(self) -> Floats:
        """Seconds of both passes of one micro-batch of which divided operators start to exchange, but for halos."""
        return self.passes_s(self.ops.start_up_s)

    @cached_property
    def split_passes_s(self) -> Mapping[str, Floats]:
        """Part of the communication -> seconds of it in both passes of one micro-batch, of divided operators."""
        return {part: self.passes_s(seconds) for part, seconds in self.ops.split_s.items()}

    @cached_property
    def received_s(self) -> Mapping[str, Floats]:
        """Phase -> seconds of the messages of one micro-batch from the stage before, and of gradients from the next."""
        return {phase: self._received(phase, self._sizes(phase)) for phase in ("forward", "backward")}

    @cached_property
    def received_start_up_s(self) -> Floats:
        """Return the part of the messages of one micro-batch that does not depend on their sizes; of each stage."""
        least = {phase: np.ones((1, len(self._messages[phase][0]))) for phase in ("forward", "backward")}
        found: Floats = sum(self._received(phase, sizes)[0] for phase, sizes in least.items())
        return found

    def _received(self, phase: str, sizes: Floats) -> Floats:
        """Seconds in which each stage receives messages of a phase, of ``sizes`` for each micro-batch."""
        found, senders = np.zeros((len(sizes), self.structure.count)), self._messages[phase][0]
        chain, step, owners = self.chain, 1 if phase == "forward" else -1, self.owners
        pairs = {
            number: (chain[owners[number]], chain[owners[number + step]]) for number in dict.fromkeys(senders.tolist())
        }
        shapes: dict[object, list[int]] = {}
        for number, pair in pairs.items():
            if pair[0] == pair[1]:
                continue
            shapes.setdefault(self.topology.shape(pair), []).append(number)
        for own in shapes.values():
            which = np.isin(senders, own)
            seconds = self.topology.latency_s("send_recv", sizes[:, which], pairs[own[0]])
            np.add.at(found.T, senders[which] + step, seconds.T)
        return found

    @property
    def _messages(self) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
        """Phase -> sender of each tensor, and its bytes for the smallest and the largest micro-batch."""
        return self.structure.held.messages

    def _sizes(self, phase: str) -> Floats:
        """Bytes of each tensor of a phase; a row a micro-batch."""
        low, high = self._messages[phase][1].T
        return low + self.shares[:, np.newaxis] * (high - low)

    @cached_property
    def shares(self) -> Floats:
        """Place of each micro-batch between the smallest (0) and the largest one (1)."""
        low, high = self.structure.low.batch, self.structure.high.batch
        return np.array([(one.batch - low) / max(high - low, 1) for one in self.works])

    @cached_property
    def live(self) -> LiveBytes:
        """Results alive in the passes of each micro-batch."""
        return self.structure.held.live(self.structure.recomputes, self.shares, self.order.divides_backward)

    @cached_property
    def received_bytes(self) -> Floats:
        """Bytes that the neighbours of a stage send for one micro-batch."""
        found = np.zeros((len(self.works), self.structure.count))
        for phase, step in (("forward", 1), ("backward", -1)):
            np.add.at(found.T, self._messages[phase][0] + step, self._sizes(phase).T)
        return found

    @cached_property
    def returned_bytes(self) -> Floats:
        """Bytes of the gradients of one micro-batch that a stage sends to the one before."""
        found = np.zeros((len(self.works), self.structure.count))
        np.add.at(found.T, self._messages["backward"][0], self._sizes("backward").T)
        return found

    @cached_property
    def pass_s(self) -> Mapping[str, Floats]:
        """Phase -> seconds of one pass of one micro-batch, with its exchanges, on each stage.

        Messages are among them where a stage waits for what it receives.
        """
        received_s: Mapping[str, Floats | float] = dict.fromkeys(("forward", "backward"), 0.0)
        if not self.order.is_looped:
            received_s = self.received_s
        return {phase: self.phase_s(phase, self.ops.busy_s) + more_s for phase, more_s in received_s.items()}

    @cached_property
    def divided_s(self) -> tuple[Floats, Floats]:
        """Seconds of both parts of a divided backward pass of one micro-batch, of inputs and of weights.

        ``CdmppError`` where it cannot be divided.
        """
        found = np.zeros((2, len(self.works), self.structure.count))
        for stage, (places, shares, is_weights) in enumerate(self.structure.held.divided):
            gaps_s = self.ops.gaps_s[:, places]
            each_s = shares * (self.ops.busy_s[:, places] - gaps_s) + gaps_s
            for number, own in enumerate((~is_weights, is_weights)):
                found[number, :, stage] = each_s[:, own].sum(axis=1)
        return found[0], found[1]

    @cached_property
    def update_s(self) -> Floats:
        """Seconds of the update of each stage, by a rank that holds all of it."""
        return self.phase_s("update", self.ops.compute_s) * self.structure.shares

    def summed_s(self, shards: Floats, is_once: bool) -> Floats:
        """Return the seconds in which stages sum up gradients between passes and update; a row for each of ``shards``.

        Arguments are those of ``OpSeconds.updates_s``.
        """
        return self.phase_s("backward", self.ops.updates_s(shards, is_once))

    def passes_s(self, seconds: Floats) -> Floats:
        """Sum ``seconds`` of the ops of both passes, given for each op of the whole rank."""
        return self.phase_s("forward", seconds) + self.phase_s("backward", seconds)

    def phase_s(self, phase: str, seconds: Floats) -> Floats:
        """Sum ``seconds`` of the ops of one phase of each stage, given for each op of the whole rank."""
        found, (places, starts, stages) = np.zeros((len(seconds), self.structure.count)), self.structure.in_phase(phase)
        if len(places):
            found[:, stages] = np.add.reduceat(seconds[:, places], starts, axis=1)
        return found
