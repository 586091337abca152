"""Replica costs: what replicas add to a step of each stage to keep their parameters alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cdmpp.plans.clipped_norms import norm_sums
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.overlap import Floats, exposed_s
from cdmpp.plans.shared_parameters import launches_of, shards_of
from cdmpp.plans.sources.source import check_cast
from cdmpp.plans.stage_costs import GRADIENTS, PARAMETERS, StageCosts
from cdmpp.plans.stages import tied_groups
from cdmpp.steps.launches import Launches
from cdmpp.steps.strategy import Strategy
from cdmpp.steps.transforms.copies import Copies

_NONE = Launches.of(())
_PART_OF = {"all_gather": PARAMETERS, "broadcast": PARAMETERS}


@dataclass(frozen=True)
class ReplicaCosts:
    """They are those of several degrees of the replicas at once: the first axis of each array."""

    part_s: Mapping[str, Floats]
    """One of ``PARTS`` -> seconds of each stage in one step, hidden or not; (degrees, stages)."""
    start_up_s: Floats
    """The part of them that does not depend on sizes; (degrees, stages)."""
    exposed_s: Floats
    """Seconds by which they delay the end of a step; (degrees, micro-batches, stages)."""
    shards: Floats
    """Ranks that divide the update."""
    summed_s: Floats
    """Seconds of sums between passes and update, of parts of gradients and of norms; (degrees, stages)."""
    tied: Sequence[tuple[tuple[int, ...], Floats]]
    """Stages that hold the same parameters, and the seconds in which they then sum its gradients; (degrees)."""
    low: Floats
    high: Floats
    """Factors from their time to the ends of its interval of 80 %."""


@dataclass(frozen=True)
class Replicas:
    """Replicas of the stages under one strategy, on several numbers of ranks."""

    costs: StageCosts
    strategy: Strategy
    many: Sequence[ParallelDegrees]
    """Degrees of the job; those that divide the model are alike."""
    replicating: tuple[str, ...]
    """Degrees along which ranks share parameters."""

    @property
    def sizes(self) -> list[dict[str, int]]:
        """Return the ranks along each degree of ``replicating``, for each of ``many``."""
        return [{name: getattr(one, name) for name in self.replicating} for one in self.many]

    def of(self, batches: int = 1) -> ReplicaCosts:
        """Return what they add where the gradients of so many batches are added up, by stages that are no pipeline.

        Schedules whose ranks hold the same stages share it. ``CdmppError``: a step that the strategy cannot share.
        """
        costs, structure = self.costs, self.costs.structure
        sharing = costs.owners if any(names for _, names in structure.tied) else None  # ranks matter to sums alone
        settings = self.strategy, *self.many, self.replicating, batches, sharing
        return costs.groups.known((structure, *costs.works), settings, lambda: self._of(batches))

    def _of(self, batches: int) -> ReplicaCosts:
        structure, costs = self.costs.structure, self.costs
        firsts, alike = costs.alike
        rank_work = costs.works[0].work
        rank = rank_work.rank
        for one in self.many:
            check_cast(rank_work, self.strategy, one.size(*self.replicating))
        shards = np.array([shards_of(self.strategy, rank, one) for one in self.sizes], np.float64)
        each = list[tuple[Floats, Floats, Floats]]()
        listed: dict[int, tuple[Launches, Floats, Floats, Floats]] = {}
        for stage in firsts:
            number = structure.alike[stage]
            own = structure.kinds[number].accumulated(batches)
            if number not in listed:
                launches = _NONE
                if self.many[0].size(*self.replicating) > 1 and own.graph.gradients:
                    made = launches_of(self.strategy, own.graph, self.sizes)
                    if made is None:  # each has other exchanges
                        return _joined([replace(self, many=[one])._of(batches) for one in self.many])
                    launches = made
                listed[number] = launches, *costs.groups.launched_s(launches, self.many, self.replicating)
            launches, costs_s, least_s, ends_s = listed[number]
            timeline = costs.timeline(stage, batches)
            exposed = exposed_s(
                timeline.starts_s(structure.shares[stage] / shards), timeline.gaps_s(len(self.many)), launches,
                np.repeat(costs_s, len(costs.works), axis=1), own.graph.synchronized,
            )  # fmt: skip
            if (copies := rank_work.copies) is not None and self.strategy.copies_buffers:
                exposed = exposed + np.repeat(_copied_s(launches, costs_s, copies), len(costs.works))
            part_of = [_PART_OF.get(kind, GRADIENTS) == PARAMETERS for kind, _ in launches.groups]
            is_parameters = np.array(part_of, np.bool_)[launches.group]
            parts = [costs_s[own].sum(axis=0) for own in (~is_parameters, is_parameters)]
            each.append((np.array([*parts, least_s]), exposed.reshape(len(self.many), -1), ends_s))
        parts_s = np.stack([one[0] for one in each], axis=2)[:, :, alike]  # (parts, degrees, stages)
        exposed = np.stack([one[1] for one in each], axis=2)[:, :, alike]  # (degrees, micro-batches, stages)
        ends_s = np.stack([one[2] for one in each])[alike].sum(axis=0)
        tied = self._tied(parts_s, ends_s)
        middle = np.where(ends_s[:, 0] > 0, ends_s[:, 0], 1.0)
        low, high = (np.where(ends_s[:, 0] > 0, ends_s[:, side] / middle, 1.0) for side in (1, 2))
        by_part = {GRADIENTS: parts_s[0], PARAMETERS: parts_s[1]}
        is_once = self.strategy.sums_parts and self.many[0].size(*self.replicating) > 1
        summed_s = costs.summed_s(shards, is_once) + (self._norms_s() if rank_work.is_clipped else 0.0)
        return ReplicaCosts(by_part, parts_s[2], exposed, shards, summed_s, tied, low, high)

    def _norms_s(self) -> Floats:
        """Seconds of each stage for a norm over all gradients; (degrees, stages)."""
        found = np.zeros((len(self.many), self.costs.structure.count))
        for place, (degrees, sizes) in enumerate(zip(self.many, self.sizes, strict=True)):
            for stage, (gradients, _) in enumerate(self.costs.structure.tied):
                for size, along in norm_sums(self.strategy, self.costs.works[0].strategies, degrees, gradients, sizes):
                    members = self.costs.groups.members(degrees, along)
                    found[place, stage] += self.costs.groups.estimate("all_reduce", size, members).latency_s
        return found

    def _tied(self, parts_s: Floats, ends_s: Floats) -> list[tuple[tuple[int, ...], Floats]]:
        """Sums over stages that hold the same parameter; ``parts_s`` and ``ends_s`` get their seconds."""
        topology, found = self.costs.topology, dict[str, tuple[tuple[int, ...], Floats]]()
        for place, (degrees, sizes) in enumerate(zip(self.many, self.sizes, strict=True)):
            chain = self.costs.groups.members(degrees, ("pp",))
            for name, numbers, size in tied_groups(self.costs.structure.tied, self.strategy.gradient_parts(sizes)):
                ranks = dict.fromkeys(self.costs.owners[number] for number in numbers)
                if len(ranks) < 2:  # the rank holds it once
                    continue
                members = tuple(chain[rank] for rank in ranks)
                estimate = self.costs.groups.estimate("all_reduce", size, members)
                least_s = float(topology.start_up_s("all_reduce", members))
                parts_s[0, place, list(numbers)] += estimate.latency_s
                parts_s[2, place, list(numbers)] += min(estimate.latency_s, least_s)
                ends_s[place] += [estimate.latency_s, estimate.low_s, estimate.high_s]
                found.setdefault(name, (numbers, np.zeros(len(self.many))))[1][place] = estimate.latency_s
        return [*found.values()]


def _copied_s(launches: Launches, costs_s: Floats, copies: Copies) -> Floats:
    """Seconds of each degree in which a device copies what it gathers and scatters, and lends itself to that."""
    found = np.zeros(costs_s.shape[1])
    for group, (kind, _) in enumerate(launches.groups):
        byte_s = {"all_gather": copies.gathered_s, "reduce_scatter": copies.scattered_s}.get(kind)
        if byte_s is not None:
            own = launches.group == group
            found += (byte_s * launches.bytes[own] + copies.share * costs_s[own]).sum(axis=0)
    return found


def _joined(each: Sequence[ReplicaCosts]) -> ReplicaCosts:
    """The costs of several degrees by themselves as those of all."""
    part_s = {part: np.concatenate([one.part_s[part] for one in each]) for part in each[0].part_s}
    tied = [
        (own[0][0], np.concatenate([sum_s for _, sum_s in own]))
        for own in zip(*(one.tied for one in each), strict=True)
    ]
    arrays = ("start_up_s", "exposed_s", "shards", "summed_s", "low", "high")
    values = {name: np.concatenate([getattr(one, name) for one in each]) for name in arrays}
    return ReplicaCosts(part_s=part_s, tied=tied, **values)
