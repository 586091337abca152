"""UnlikeQuestion: which way to train a network on devices that differ, and which of them holds what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from cdmpp.errors import CdmppError
from cdmpp.plans.candidates import VALID, Candidates
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.judge import Judge
from cdmpp.plans.overlap import Floats
from cdmpp.plans.plan import Plan
from cdmpp.plans.plan_stages import PlanStages
from cdmpp.plans.question import Judged, Question
from cdmpp.plans.sources.unlike import UnlikeSource
from cdmpp.plans.stage_costs import layout_of
from cdmpp.plans.step_terms import rank_bytes
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.unlike.arrangement import MOST, Arrangement, arrangements
from cdmpp.plans.unlike.block import Block, UnlikeCandidates, UnlikeJudged, Variant, joined
from cdmpp.plans.unlike.cuts import at_places, balanced_over, named_places, parts_s
from cdmpp.plans.unlike.mixed_stages import mixed
from cdmpp.plans.unlike.shares import balanced_shares
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import Schedule
from cdmpp.steps.strategy import IntArray
from cdmpp.units import quantity

_CLOSE = 1e-9
_TURNS = 3
"""Cuts follow shares, and shares cuts, so many times."""


@dataclass(frozen=True)
class UnlikeQuestion(Question):
    """Its source has the work on each device, and its topology places ranks.

    Each device has a limit of memory of its own: ``memory_limit_bytes`` is not asked.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    """Device -> ranks on it."""
    memory_limits: Mapping[str, float] = field(default_factory=dict)
    """Device -> bytes that it may hold; a device that is not there has no limit."""
    gpus: frozenset[str] = frozenset()
    """Devices of which the allocator of a GPU counts."""

    def __post_init__(self) -> None:
        if not isinstance(self.source, UnlikeSource) or (lacking := set(self.counts) - set(self.source.sources)):
            raise CdmppError(f"nothing tells what ranks take on {', '.join(sorted(lacking))}")
        if sum(self.counts.values()) != self.ranks:
            raise CdmppError(f"{sum(self.counts.values())} devices for {self.ranks} ranks: give one a rank")

    @cached_property
    def _judges(self) -> dict[str, Judge]:
        assert isinstance(self.source, UnlikeSource)
        return {name: Judge(self.source.sources[name], name in self.gpus) for name in self.counts}

    @cached_property
    def _topology(self) -> Any:
        return self.topology(self.ranks)

    def judged(self, ranks: int | None = None, names: tuple[str, ...] | None = None) -> Judged:
        """Return all plans on all arrangements of the devices; ``CdmppError`` for another number of them."""
        if ranks not in (None, self.ranks):
            raise CdmppError(f"the devices are {self.ranks}, and {ranks} are asked for")
        key = self.ranks, self.names if names is None else names
        if key not in self._judged:
            self._judged[key] = self._judge_all(self._candidates(*key))
        return self._judged[key]

    def _judge_all(self, plans: Candidates) -> Judged:
        made = [Block.invalid(plans)]
        every, which = np.unique(plans.degrees, axis=0, return_inverse=True)
        cut_short = False
        for number in range(len(every)):
            rows = np.flatnonzero((which.ravel() == number) & (plans.reason == VALID))
            if not len(rows):
                continue
            degrees = plans.degrees_of(int(rows[0]))
            found, is_all = arrangements(self.counts, degrees)
            cut_short |= not is_all
            if not found:
                made.append(Block.refused(plans, rows, _UNEVEN.format(self._said(degrees))))
            for one in found:
                made += self._arranged(plans, rows, degrees, one)
        told = f"devices are tried in up to {MOST} arrangements for each division: others may be faster"
        return joined(made, self.inputs_s, (told,) if cut_short else ())

    def _said(self, degrees: ParallelDegrees) -> int:
        return degrees.ranks // (degrees.pp * degrees.size("dp_replicate", "dp_shard"))

    def _arranged(
        self, plans: Candidates, rows: IntArray, degrees: ParallelDegrees, one: Arrangement
    ) -> Iterator[Block]:
        """Judge plans of the same degrees on one arrangement, with equal shares and with others."""
        devices = one.of_ranks(degrees)
        try:
            self._topology.placed(devices)
        except CdmppError as error:
            yield Block.refused(plans, rows, str(error))
            return
        even = self._block(plans, rows, degrees, one, devices, is_uneven=False)
        yield even
        if len(one.kinds) > 1:
            is_free = np.array([not each.strategy.exchanges_each_batch for each in plans.combinations])
            own = rows[is_free[plans.combination[rows]] & (plans.micro_batches[rows] > 1)]
            if len(own):
                uneven = self._block(plans, own, degrees, one, devices, is_uneven=True)
                uneven.drop(np.flatnonzero(uneven.step_s >= (1 - _CLOSE) * even.step_s[np.searchsorted(rows, own)]))
                yield uneven

    def _block(
        self, plans: Candidates, rows: IntArray, degrees: ParallelDegrees, one: Arrangement,
        devices: tuple[str, ...], is_uneven: bool,
    ) -> Block:  # fmt: skip
        block = Block.of(plans, rows)
        layouts = [repr(layout_of(each)) for each in plans.schedules]
        keys = [(bool(plans.recompute[row]), layouts[plans.schedule[row]]) for row in rows]
        for recomputes, layout in dict.fromkeys(keys):
            own = np.flatnonzero([key == (recomputes, layout) for key in keys])
            order = plans.schedules[int(plans.schedule[rows[own[0]]])]
            try:
                self._fill(block, own, degrees, one, devices, is_uneven, recomputes, order)
            except CdmppError as error:
                block.refuse(own, str(error))
        return block

    def _fill(
        self, block: Block, own: IntArray, degrees: ParallelDegrees, one: Arrangement, devices: tuple[str, ...],
        is_uneven: bool, recomputes: bool, order: Schedule,
    ) -> None:  # fmt: skip
        """Judge plans that are cut alike."""
        plans, weights = block.plans.taken(own), dict.fromkeys(one.kinds, 1.0)
        for _ in range(_TURNS if is_uneven and degrees.pp > 1 else 1):
            cuts = self._cuts(plans, degrees, one, recomputes, order, weights)
            each, kept, errors = self._stages(plans, one, cuts)
            columns = {column: mixed(each, column, one) for column in one.kinds} if len(kept) else {}
            if not columns:
                break
            paces = {column: _pace(stages)[0] for column, stages in columns.items()}
            weights = {column: 1 / float(np.median(pace_s)) for column, pace_s in paces.items()}
        for row, why in errors.items():
            block.refuse(own[[row]], why)
        if not len(kept):
            return
        taken = plans.taken(kept)
        many = {column: taken.micro_batches for column in one.kinds}
        shares: list[tuple[int, ...]] = [()] * len(kept)
        if is_uneven:
            shares = [self._shares(taken, row, columns, one) for row in range(len(kept))]
            is_own = np.array([self._is_own(taken, row, each_, degrees) for row, each_ in enumerate(shares)])
            block.drop(own[kept[~is_own]])
            rows = np.flatnonzero(is_own)
            if not len(rows):
                return
            kept, taken, shares = kept[rows], taken.taken(rows), [shares[row] for row in rows.tolist()]
            each = {name: stages.taken(rows) for name, stages in each.items()}
            columns = {column: stages.taken(rows) for column, stages in columns.items()}
            numbers = {column: [n for n, other in enumerate(one.columns) if other == column] for column in one.kinds}
            many = {
                column: np.array([max(each_[n] for n in own_) for each_ in shares]) for column, own_ in numbers.items()
            }
        variants = [Variant(devices, cuts, each_) for each_ in shares]
        chained = [
            degrees.pp > 1 and each_.strategy.on_backend(self._topology.backend).in_pipeline().ends_backward
            for each_ in taken.combinations
        ]
        block.put(own[kept], taken, columns, many, variants, np.array(chained, np.int64)[taken.combination])
        self._check_memory(block, own[kept], taken, each, many, one)

    def _is_own(self, plans: Candidates, row: int, shares: tuple[int, ...], degrees: ParallelDegrees) -> bool:
        """Return True if shares differ, and the schedule of a plan takes each of them."""
        order = plans.schedules[int(plans.schedule[row])]
        can_be = degrees.pp == 1 or not any(order.why_not(degrees.pp, share) for share in set(shares))
        return can_be and len(set(shares)) > 1

    def _shares(
        self, plans: Candidates, row: int, columns: Mapping[tuple[str, ...], PlanStages], one: Arrangement
    ) -> tuple[int, ...]:
        found = {column: _pace(stages) for column, stages in columns.items()}
        paces, fills = ([float(found[column][part][row]) for column in one.columns] for part in (0, 1))
        return balanced_shares(paces, fills, int(plans.micro_batches[row]) * len(one.columns))

    def _stages(
        self, plans: Candidates, one: Arrangement, cuts: tuple[str, ...] | None
    ) -> tuple[dict[str, PlanStages], IntArray, dict[int, str]]:
        """Stages of the plans on each device, rows that can be on all of them, and why others cannot."""
        cut = replace(plans, combinations=tuple(_with_cuts(each, cuts) for each in plans.combinations))
        errors, found = dict[int, str](), dict[str, PlanStages]()
        for name in one.devices:
            (*groups,) = self._judges[name].stages(cut, self._topology.on(name), errors)
            if groups:
                group = PlanStages.joined(groups)
                found[name] = group.taken(np.argsort(group.rows))
        if len(found) < len(one.devices):
            return {}, np.zeros(0, np.int64), errors
        kept = np.array([row for row in range(len(plans)) if row not in errors], np.int64)
        return {name: each.taken(np.searchsorted(each.rows, kept)) for name, each in found.items()}, kept, errors

    def _cuts(
        self, plans: Candidates, degrees: ParallelDegrees, one: Arrangement, recomputes: bool, order: Schedule,
        weights: Mapping[tuple[str, ...], float],
    ) -> tuple[str, ...] | None:  # fmt: skip
        """Names of the cuts under which the slowest stage of any replica is fastest."""
        count = degrees.pp * order.stages_per_rank
        if count == 1 or len(one.devices) == 1:
            return None
        division, operators = plans.division_of(0), plans.combinations[int(plans.combination[0])].operators
        size = int(plans.micro_batch.min())
        on = {
            name: judge.work(size, division, operators).cut_places(recomputes) for name, judge in self._judges.items()
        }
        named = {name: named_places(each, count) for name, each in on.items()}
        base = named[one.devices[0]]
        names = [name for name in base if all(name in each for each in named.values())]
        if len(names) < count - 1:
            raise CdmppError(f"{count} stages of a model with {len(names)} places that are alike on all devices")
        until_s = {name: at_places(on[name].until_s, [named[name][cut] for cut in names]) for name in one.devices}
        sizes = on[one.devices[0]].bytes_at([base[cut] for cut in names])
        pair = (0, degrees.ranks // degrees.pp) if degrees.pp > 1 else (0, 0)
        sent_s = {
            name: np.concatenate([[0.0], 2 * self._topology.on(name).latency_s("send_recv", sizes, pair), [0.0]])
            for name in one.devices
        }
        length_s = np.zeros((count, len(names) + 2, len(names) + 2))
        for column, weight in weights.items():
            at = [column[order.rank_of(stage, degrees.pp)] for stage in range(count)]
            for stage, device in enumerate(at):
                ends = [
                    np.maximum(sent_s[device], sent_s[at[other]]) if 0 <= other < count else None
                    for other in (stage - 1, stage + 1)
                ]
                own = parts_s(until_s[device], (ends[0], ends[1])) * weight * max(weights.values()) ** -1
                length_s[stage] = np.maximum(length_s[stage], own)
        chosen = balanced_over(length_s)
        return tuple(names[place - 1] for place in chosen)

    def _check_memory(
        self, block: Block, rows: IntArray, plans: Candidates, each: Mapping[str, PlanStages],
        many: Mapping[tuple[str, ...], IntArray], one: Arrangement,
    ) -> None:  # fmt: skip
        """Find what the ranks on each device hold, and refuse plans where that is more than it may."""
        for name in one.devices:
            most = np.full(len(plans), -np.inf)
            for column in one.kinds:
                places = [place for place, device in enumerate(column) if device == name]
                if places:
                    own = rank_bytes(replace(plans, micro_batches=many[column]), each[name])
                    most = np.maximum(most, own[:, places].max(axis=1))
            block.hold(rows, name, most, self.memory_limits.get(name, np.inf))

    def lacks(self, judged: Judged) -> str:
        """Say how many bytes the plan lacks that lacks least on any device."""
        assert isinstance(judged, UnlikeJudged)
        short = np.where(np.isnan(judged.costs.step_s), np.inf, judged.short)
        row, limits = (
            int(short.argmin()),
            (f"{name} {quantity(most, 'B')}" for name, most in self.memory_limits.items()),
        )
        name = judged.plans.combinations[int(judged.plans.combination[row])].name
        return (
            f"no plan fits: devices may hold {', '.join(limits)}, and the leanest plan, {name} on "
            f"{self.ranks} devices, lacks {quantity(float(short[row]), 'B')} on one of them; take more devices, more "
            "micro-batches, fsdp, or stages that are recomputed"
        )

    def plan(self, plans: Candidates, row: int) -> Plan:
        """Make the plan of one row."""
        found = super().plan(plans, row)
        if not isinstance(plans, UnlikeCandidates) or plans.variant[row] < 0:
            return found
        variant = plans.variants[int(plans.variant[row])]
        dividing = tuple(
            replace(one, cuts=variant.cuts) if isinstance(one, Pipeline) else one for one in found.model_parallel
        )
        return replace(found, model_parallel=dividing, devices=variant.devices, shares=variant.shares)


_UNEVEN = "each {} ranks that divide the same operators need equal devices, of which there are other numbers"


def _with_cuts(one: Any, cuts: tuple[str, ...] | None) -> Any:
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
