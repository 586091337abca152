"""Arranged: plans of one division of a job on one arrangement of its devices, judged by closed form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError
from cdmpp.plans.candidates import Candidates, stops
from cdmpp.plans.combinations import Combination
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.judge import Judge
from cdmpp.plans.overlap import Floats
from cdmpp.plans.plan_stages import PlanStages
from cdmpp.plans.stage_costs import layout_of
from cdmpp.plans.step_terms import rank_bytes
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.unlike.arrangement import Arrangement, Column
from cdmpp.plans.unlike.block import Block, Variant
from cdmpp.plans.unlike.cutting import Cutting
from cdmpp.plans.unlike.mixed_stages import mixed
from cdmpp.plans.unlike.shares import balanced_shares
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import Schedule
from cdmpp.steps.strategy import IntArray

_CLOSE = 1e-9
_TURNS = 3
"""Cuts follow shares, and shares cuts, so many times."""
_LEAN_TURNS = 6
"""Stages that do not fit become smaller so many times."""
_LESS = 0.97
"""They become so much smaller than in proportion to what they lack."""


@dataclass(frozen=True)
class _Stages:
    """It holds the costs of the stages of some plans under the same cuts."""

    cuts: tuple[str, ...] | None
    each: Mapping[str, PlanStages]
    """Device -> the stages, were all on it."""
    kept: IntArray
    """Plans that can be."""
    errors: Mapping[int, str]
    """Plan -> why it cannot be."""
    columns: Mapping[Column, PlanStages]
    """Devices of a replica -> its stages."""


@dataclass(frozen=True)
class Arranged:
    """All plans have the same degrees."""

    judges: Mapping[str, Judge]
    topology: Topology
    limits: Mapping[str, float]
    """Device -> bytes that it may hold."""
    degrees: ParallelDegrees
    arrangement: Arrangement
    devices: tuple[str, ...]
    """Each rank has one."""

    def blocks(self, plans: Candidates, even_shares: bool) -> Iterator[Block]:
        """Judge plans with equal shares, with cuts that suit the memory where others do not, and with other shares."""
        even = self._block(plans)
        yield from self._with_lean(plans, even)
        if len(self.arrangement.kinds) == 1 or even_shares:
            return
        is_free = np.array([not one.strategy.exchanges_each_batch for one in plans.combinations])
        rows = np.flatnonzero(is_free[plans.combination] & (plans.micro_batches > 1))
        if len(rows):
            uneven = self._block(plans.taken(rows), is_uneven=True)
            uneven.drop(np.flatnonzero(uneven.step_s >= (1 - _CLOSE) * even.step_s[rows]))
            yield uneven

    def _with_lean(self, plans: Candidates, even: Block) -> Iterator[Block]:
        """Replace plans that do not fit by those with other cuts that do."""
        rows = np.flatnonzero(even.short > 0)
        if len(rows) and self.degrees.pp > 1 and len(self.arrangement.devices) > 1:
            lean = self._block(plans.taken(rows), is_lean=True)
            fits = (lean.short <= 0) & ~np.isnan(lean.step_s)
            lean.drop(np.flatnonzero(~fits))
            even.drop(rows[fits])
            yield lean
        yield even

    def _block(self, plans: Candidates, is_uneven: bool = False, is_lean: bool = False) -> Block:
        block = Block(plans)
        layouts = [repr(layout_of(one)) for one in plans.schedules]
        keys = [(bool(again), layouts[number]) for again, number in zip(plans.recompute, plans.schedule, strict=True)]
        for key in dict.fromkeys(keys):
            own = np.flatnonzero([one == key for one in keys])
            order = plans.schedules[int(plans.schedule[own[0]])]
            try:
                self._fill(block, own, key[0], order, is_uneven, is_lean)
            except CdmppError as error:
                block.refuse(own, str(error))
        return block

    def _fill(
        self, block: Block, own: IntArray, recomputes: bool, order: Schedule, is_uneven: bool, is_lean: bool
    ) -> None:
        """Judge plans that are cut alike."""
        plans, one = block.plans.taken(own), self.arrangement
        cutting = self._cutting(plans, recomputes, order)
        if is_lean and cutting is not None and not order.is_looped:
            found = self._lean(plans, cutting)
        else:
            found = self._balanced(plans, cutting, _TURNS if is_uneven and cutting is not None else 1)
        if found is None:
            return
        for row, why in found.errors.items():
            block.refuse(own[[row]], why)
        rows = np.arange(len(found.kept))
        shares: list[tuple[int, ...]] = [()] * len(rows)
        if is_uneven:
            every = [self._shares(plans.taken(found.kept), row, found.columns) for row in rows.tolist()]
            is_own = np.array(
                [self._is_own(plans, int(found.kept[row]), every[row]) for row in rows.tolist()], np.bool_
            )
            block.drop(own[found.kept[~is_own]])
            rows = rows[is_own]
            shares = [every[row] for row in rows.tolist()]
        if not len(rows):
            return
        taken, columns = plans.taken(found.kept[rows]), {name: each.taken(rows) for name, each in found.columns.items()}
        many = {column: taken.micro_batches for column in one.kinds}
        if is_uneven:
            numbers = {column: [n for n, other in enumerate(one.columns) if other == column] for column in one.kinds}
            many = {column: np.array([max(each[n] for n in n_) for each in shares]) for column, n_ in numbers.items()}
        chained = np.array([self._is_chained(each) for each in taken.combinations], np.int64)[taken.combination]
        block.put(
            own[found.kept[rows]], taken, columns, many, [Variant(self.devices, found.cuts, each) for each in shares],
            chained,
        )  # fmt: skip
        each = {name: stages.taken(rows) for name, stages in found.each.items()}
        for name, held in self._held(taken, each, many).items():
            block.hold(own[found.kept[rows]], name, held.max(axis=1), self.limits.get(name, np.inf))

    def _is_chained(self, one: Combination) -> bool:
        """Return True if a stage ends a backward pass only when its gradients are averaged."""
        return self.degrees.pp > 1 and one.strategy.on_backend(self.topology.backend).in_pipeline().ends_backward

    def _is_own(self, plans: Candidates, row: int, shares: tuple[int, ...]) -> bool:
        """Return True if shares differ, and the schedule of a plan and the framework take each of them."""
        order, ranks = plans.schedules[int(plans.schedule[row])], self.degrees.pp
        replicas = plans.combinations[int(plans.combination[row])].strategy
        for share in set(shares) if ranks > 1 else ():
            if order.why_not(ranks, share) or (plans.is_torch and stops(order, ranks, share, replicas)):
                return False
        return len(set(shares)) > 1

    def _shares(self, plans: Candidates, row: int, columns: Mapping[Column, PlanStages]) -> tuple[int, ...]:
        """Return the micro-batches of each replica under which all end at about the same time."""
        found, every = {column: _pace(stages) for column, stages in columns.items()}, self.arrangement.columns
        paces, fills = ([float(found[column][part][row]) for column in every] for part in (0, 1))
        return balanced_shares(paces, fills, int(plans.micro_batches[row]) * len(every))

    def _cutting(self, plans: Candidates, recomputes: bool, order: Schedule) -> Cutting | None:
        """Return where stages may begin; None where there is one, or all stand on the same device."""
        one, ranks = self.arrangement, self.degrees.pp
        if ranks == 1 or len(one.devices) == 1:
            return None
        division, operators = plans.division_of(0), plans.combinations[int(plans.combination[0])].operators
        size, stages = int(plans.micro_batch.min()), range(ranks * order.stages_per_rank)
        on = {name: self.judges[name].work(size, division, operators).cut_places(recomputes) for name in one.devices}
        devices = {column: tuple(column[order.rank_of(stage, ranks)] for stage in stages) for column in one.kinds}
        return Cutting.of(on, self.topology, (0, self.degrees.ranks // ranks), devices)

    def _balanced(self, plans: Candidates, cutting: Cutting | None, turns: int) -> _Stages | None:
        """Cut for the slowest stage, by turns with the shares that suit the cuts."""
        weights, found = dict.fromkeys(self.arrangement.kinds, 1.0), None
        for _ in range(turns):
            cuts = None
            if cutting is not None:
                count = len(next(iter(cutting.devices.values())))
                cuts = cutting.named(cutting.chosen(weights, np.full(count, np.inf)))
            found = self._stages(plans, cuts)
            if not len(found.kept):
                break
            weights = {column: 1 / float(np.median(_pace(each)[0])) for column, each in found.columns.items()}
        return found

    def _lean(self, plans: Candidates, cutting: Cutting) -> _Stages | None:
        """Make stages that do not fit smaller, until one of the plans fits; None where none does."""
        weights, caps = dict.fromkeys(self.arrangement.kinds, 1.0), np.full(self.degrees.pp, np.inf)
        for _ in range(_LEAN_TURNS):
            places = cutting.chosen(weights, caps)
            if not places:
                return None
            found = self._stages(plans, cutting.named(places))
            if not len(found.kept):
                return None
            taken = plans.taken(found.kept)
            many = {column: taken.micro_batches for column in self.arrangement.kinds}
            held = self._held(taken, found.each, many)
            over = np.max([np.maximum(held[name], 0.0) / self.limits.get(name, np.inf) for name in held], axis=0)
            leanest = over[over.max(axis=1).argmin()]
            if leanest.max() <= 1:
                return found
            less = np.where(leanest > 1, _LESS / np.maximum(leanest, 1), np.inf)
            caps = np.minimum(caps, cutting.stage_bytes(places) * less)
        return None

    def _stages(self, plans: Candidates, cuts: tuple[str, ...] | None) -> _Stages:
        """Return what stages take, of the plans that can be on all devices."""
        cut = replace(plans, combinations=tuple(_with_cuts(one, cuts) for one in plans.combinations))
        errors, found, one = dict[int, str](), dict[str, PlanStages](), self.arrangement
        for name in one.devices:
            groups = [*self.judges[name].stages(cut, self.topology.on(name), errors)]
            if groups:
                group = PlanStages.joined(groups)
                found[name] = group.taken(np.argsort(group.rows))
        kept = np.array([row for row in range(len(plans)) if row not in errors], np.int64)
        if len(found) < len(one.devices) or not len(kept):
            return _Stages(cuts, {}, np.zeros(0, np.int64), errors, {})
        each = {name: stages.taken(np.searchsorted(stages.rows, kept)) for name, stages in found.items()}
        return _Stages(cuts, each, kept, errors, {column: mixed(each, column, one) for column in one.kinds})

    def _held(
        self, plans: Candidates, each: Mapping[str, PlanStages], many: Mapping[Column, IntArray]
    ) -> dict[str, Floats]:
        """Return what the ranks on each device hold; (plans, ranks of the pipeline), nothing where none is on it."""
        found = {name: np.full((len(plans), self.degrees.pp), -np.inf) for name in self.arrangement.devices}
        for column in self.arrangement.kinds:
            for name in dict.fromkeys(column):
                own = rank_bytes(replace(plans, micro_batches=many[column]), each[name])
                places = [place for place, device in enumerate(column) if device == name]
                found[name][:, places] = np.maximum(found[name][:, places], own[:, places])
        return found


def _with_cuts(one: Combination, cuts: tuple[str, ...] | None) -> Combination:
    dividing = (replace(each, cuts=cuts) if isinstance(each, Pipeline) else each for each in one.model_parallel)
    return one if cuts is None else replace(one, model_parallel=tuple(dividing))


def _pace(stages: PlanStages) -> tuple[Floats, Floats]:
    """Seconds that a further micro-batch takes, and those that a pipeline takes whatever their number."""
    each_s = stages.forward_s + stages.backward_s
    pace_s = each_s
    if isinstance(stages.order, LoopedSchedule):
        pace_s = stages.order.of_ranks(each_s, stages.count // stages.order.stages_per_rank)
    slowest_s: Floats = pace_s.max(axis=1)
    return slowest_s, each_s.sum(axis=1) - slowest_s
