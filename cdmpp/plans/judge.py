"""Judge: it finds what all plans of a question cost by closed form, in operations on arrays over plans and stages.

Plans that share a division of the model, or a strategy of the replicas, share what that costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError
from cdmpp.plans.candidates import VALID, Candidates
from cdmpp.plans.closed_form import ClosedForm
from cdmpp.plans.combinations import Combination
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.group_costs import GroupCosts
from cdmpp.plans.held_stages import HeldStages
from cdmpp.plans.leading import Leading
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.plan_stages import PlanStages, of_plans
from cdmpp.plans.sources.source import StepSource
from cdmpp.plans.stage_costs import PARTS, StageCosts, layout_of
from cdmpp.plans.stage_structure import StageStructure
from cdmpp.plans.step_terms import FIELDS, step_terms
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.work_columns import WorkColumns
from cdmpp.platform.progress import shown
from cdmpp.steps.schedule import Schedule
from cdmpp.steps.strategy import OperatorStrategy

IntArray = NDArray[np.int64]
MOST_CELLS = 1_000_000
"""Stages of plans that are held before these plans are judged, so that millions of plans need little memory."""
Operators = tuple[OperatorStrategy, ...]
"""Strategies that divide operators, with their settings."""


@dataclass(frozen=True)
class Judge:
    """What does not depend on the number of devices is worked out once."""

    source: StepSource
    is_gpu: bool = False
    """True if the allocator of a GPU counts."""
    progress: bool = False
    """True if bars are shown on standard error while the network is read and plans are judged."""
    _works: dict[tuple[int, ParallelDegrees, Operators], WorkColumns] = field(default_factory=dict, repr=False)
    _structures: dict[tuple[object, ...], StageStructure] = field(default_factory=dict, repr=False)
    _held: dict[tuple[object, ...], HeldStages] = field(default_factory=dict, repr=False)
    _kinds: dict[tuple[object, ...], int] = field(default_factory=dict, repr=False)
    _numbered: dict[int, tuple[WorkColumns, int]] = field(default_factory=dict, repr=False)

    def timed_by(self, source: StepSource) -> Judge:
        """Return a judge of the same work with the times of another source.

        What ranks hold and where they are cut stays as it is: for sources whose ops, bytes and exchanges are the same,
        and for pipelines that are not cut by times.
        """
        works = {key: one.timed_by(source) for key, one in self._works.items()}
        return replace(self, source=source, _works=works)

    def closed_form(self, plans: Candidates, topology: Topology, leading: Leading | None = None) -> ClosedForm:
        """Compute time and memory of all plans.

        Args:
            plans: all plans, as columns.
            topology: the links between the ranks of the job.
            leading: what is known of the fastest plans; plans that it leaves out are NaN. None: all are judged.
        """
        found, errors = {name: np.full(len(plans), np.nan) for name in (*FIELDS, *PARTS)}, dict[int, str]()
        for group in self.stages(plans, topology, errors, leading):
            terms = step_terms(plans.taken(group.rows), group)
            for name, values in terms.items():
                found[name][group.rows] = values
            if leading is not None:
                leading.note(group.rows, plans, terms)
        return ClosedForm(
            **{name: found[name] for name in FIELDS},
            communication_s={part: found[part] for part in PARTS},
            errors=errors,
        )

    def stages(
        self, plans: Candidates, topology: Topology, errors: dict[int, str], leading: Leading | None = None
    ) -> Iterator[PlanStages]:
        """Yield what the stages of all plans that can be take, many with as many stages together.

        With ``leading`` those of a division come by themselves, few stages first, so that it hears of their times
        before the next ones.

        Args:
            plans: all plans, as columns.
            topology: the links between the ranks of the job.
            errors: it gets row and reason of each plan that only its costs show to be impossible.
            leading: as of ``closed_form``.
        """
        divisions, groups = _divisions(plans, np.flatnonzero(plans.reason == VALID)), GroupCosts(topology)
        self._prepare(plans, divisions)
        if leading is not None:
            for division in sorted(divisions, key=lambda rows: plans.degrees_of(int(rows[0])).pp):
                yield from self._division(plans, groups, division, errors, leading)
            return
        by_stages, cells = dict[tuple[object, ...], list[PlanStages]](), dict[tuple[object, ...], int]()
        for division in shown((one for one in divisions), "ways to divide the model", len(divisions), self.progress):
            for one in self._division(plans, groups, division, errors):
                key = one.count, layout_of(one.order), one.memory is None
                by_stages.setdefault(key, []).append(one)
                cells[key] = cells.get(key, 0) + len(one.rows) * one.count
                if sum(cells.values()) > MOST_CELLS:
                    largest = max(cells, key=lambda each: cells[each])
                    del cells[largest]
                    yield PlanStages.joined(by_stages.pop(largest))
        yield from map(PlanStages.joined, by_stages.values())

    def _prepare(self, plans: Candidates, divisions: Sequence[IntArray]) -> None:
        """Let the source make ready for all sizes of micro-batches."""
        sizes = np.unique(np.concatenate([plans.micro_batch[rows] for rows in divisions])) if divisions else ()
        each = dict.fromkeys((plans.division_of(int(rows[0])), _operators(plans, rows)) for rows in divisions)
        for degrees, operators in shown((one for one in each), "readings of the network", len(each), self.progress):
            self.source.prepare([int(one) for one in sizes], [degrees], operators)

    def _division(
        self, plans: Candidates, groups: GroupCosts, rows: IntArray, errors: dict[int, str],
        leading: Leading | None = None,
    ) -> Iterator[PlanStages]:  # fmt: skip
        """Yield the plans ``rows``, which divide the model alike; ``errors`` gets those that cannot be."""
        degrees, operators = plans.division_of(int(rows[0])), _operators(plans, rows)
        try:
            classes = self._alike(degrees, operators, np.unique(plans.micro_batch[rows]).tolist())
        except CdmppError as error:
            errors |= dict.fromkeys(rows.tolist(), str(error))
            return
        layouts = _layouts(plans.schedules)
        each = np.array([place for place, _ in layouts])[plans.schedule[rows]]
        for batches, recomputes, place in itertools.product(classes, (False, True), np.unique(each).tolist()):
            is_own = np.isin(plans.micro_batch[rows], batches) & (plans.recompute[rows] == recomputes)
            own, order = rows[is_own & (each == place)], plans.schedules[place]
            costs: StageCosts | None = None
            for number in dict.fromkeys(plans.combination[own].tolist()):
                taken, combination = own[plans.combination[own] == number], plans.combinations[number]
                try:
                    costs = costs or self._stage_costs(
                        degrees, recomputes, batches, combination, groups, plans.ranks, order
                    )
                    if leading is not None:
                        taken = leading.hopeful(taken, plans, costs)
                except CdmppError as error:
                    errors |= dict.fromkeys(taken.tolist(), str(error))
                    continue
                if len(taken):
                    yield from _judged(costs, combination, plans, taken, errors)

    def work(self, size: int, degrees: ParallelDegrees, operators: Operators) -> WorkColumns:
        """Return the work of one rank for a micro-batch of so many examples, as arrays."""
        key = size, degrees, operators
        if key not in self._works:
            if degrees.pp > 1:
                self._works[key] = self.work(size, replace(degrees, pp=1), operators)
            else:
                self._works[key] = WorkColumns(size, self.source, degrees, operators)
        return self._works[key]

    def _alike(self, degrees: ParallelDegrees, operators: Operators, sizes: Sequence[int]) -> list[tuple[int, ...]]:
        """Divide micro-batches into those that run the same ops: one example may run other ones than several do."""
        found: dict[int, list[int]] = {}
        for size in sizes:
            found.setdefault(self._ops(self.work(size, degrees, operators)), []).append(size)
        return [tuple(own) for own in found.values()]

    def _ops(self, work: WorkColumns) -> int:
        """Return a number that is equal for works that run the same ops; thousands of ops take long to compare."""
        if id(work) not in self._numbered:
            self._numbered[id(work)] = work, self._kinds.setdefault(work.times.ops, len(self._kinds))
        return self._numbered[id(work)][1]

    def _stage_costs(
        self, degrees: ParallelDegrees, recomputes: bool, sizes: tuple[int, ...], combination: Combination,
        groups: GroupCosts, ranks: int, order: Schedule,
    ) -> StageCosts:  # fmt: skip
        operators, replicas = combination.operators, ranks // degrees.ranks
        works = [self.work(size, degrees, operators) for size in sizes]
        own = replace(degrees, dp_replicate=replicas)
        cuts = _cuts(works[0], recomputes, own, combination, groups.topology, order.stages_per_rank)
        alike = replace(degrees, pp=1), operators, cuts, self._ops(works[0])
        if alike not in self._held or not self._held[alike].knows(sizes):
            self._held[alike] = HeldStages(works[0], works[-1], cuts, self.is_gpu)
        key = (*alike, recomputes)
        if key not in self._structures or self._structures[key].held is not self._held[alike]:
            self._structures[key] = StageStructure(recomputes, self._held[alike])
        return StageCosts(works, self._structures[key], groups, degrees, replicas, order)


def _judged(
    costs: StageCosts, combination: Combination, plans: Candidates, rows: IntArray, errors: dict[int, str]
) -> Iterator[PlanStages]:
    """Yield plans of one combination; where some numbers of replicas cannot be, the others by themselves."""
    try:
        yield of_plans(costs, combination, plans, rows)
    except CdmppError as error:
        kinds = np.unique(plans.replicas[rows], axis=0)
        if len(kinds) == 1:
            errors |= dict.fromkeys(rows.tolist(), str(error))
            return
        for own in kinds:
            yield from _judged(costs, combination, plans, rows[(plans.replicas[rows] == own).all(axis=1)], errors)


def _divisions(plans: Candidates, rows: IntArray) -> list[IntArray]:
    """Rows of plans that divide the model alike, in the order of their first rows."""
    if not len(rows):
        return []
    every = list(dict.fromkeys(one.operators for one in plans.combinations))
    operators = np.array([every.index(one.operators) for one in plans.combinations])[plans.combination[rows]]
    divided = np.column_stack([plans.dividing[rows], operators])
    _, firsts, which = np.unique(divided, axis=0, return_index=True, return_inverse=True)
    return [rows[which.ravel() == number] for number in np.argsort(firsts)]


def _operators(plans: Candidates, rows: IntArray) -> Operators:
    """Return the strategies by which plans that divide the model alike divide its operators."""
    return plans.combinations[int(plans.combination[rows[0]])].operators


def _layouts(schedules: Sequence[Schedule]) -> list[tuple[int, object]]:
    """Return for each schedule the first that places stages on ranks as it does, and how that is."""
    layouts = [layout_of(one) for one in schedules]
    return [(layouts.index(one), one) for one in layouts]


def _cuts(
    work: WorkColumns, recomputes: bool, degrees: ParallelDegrees, combination: Combination, topology: Topology,
    stages_per_rank: int,
) -> tuple[int, ...]:  # fmt: skip
    """Places of ops with which the second and later stages begin, as the pipeline itself chooses them."""
    pipeline = next((one for one in combination.model_parallel if isinstance(one, Pipeline)), None)
    if pipeline is None or degrees.pp == 1:
        return ()
    pair = Mesh(degrees).group_of(0, ("pp",))[:2]
    return pipeline.cut_places(
        work.cut_places(recomputes),
        degrees.pp * stages_per_rank,
        lambda sizes: topology.latency_s("send_recv", sizes, pair),
    )
