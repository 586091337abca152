"""Closed form: time and memory of all plans at once, in operations on arrays.

ParaDL's formulas (HPDC'21, table 3) are the special case of equal layers, one bucket and no overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError
from cdmpp.plans.candidates import DEGREES, REPLICAS, VALID, Candidates
from cdmpp.plans.combinations import Combination
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.overlap import Floats
from cdmpp.plans.sources.source import StepSource
from cdmpp.plans.stage_costs import HALOS, PARTS, SENDS, StageCosts
from cdmpp.plans.stage_structure import StageStructure, WorkColumns
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.step_graph import RankGraph

DIVIDING = tuple(name for name in DEGREES if name not in REPLICAS)
"""Degrees that divide the model."""


@dataclass(frozen=True)
class ClosedForm:
    """Each array has one number a plan, NaN where the plan cannot be; seconds of one step, from update to update."""

    compute_s: Floats
    """Forward and backward passes of all micro-batches on the stage that takes longest."""
    bubble_s: Floats
    """A stage waits for others: the pipeline fills and drains, and stages are unequal."""
    update_s: Floats
    exposed_s: Floats
    """Seconds of communication that nothing hides."""
    once_s: Floats
    """Seconds that a step takes once, such as for loading a batch."""
    start_up_share: Floats
    """Share of the communication in the open, but for halos, that does not depend on sizes."""
    memory_bytes: Floats
    """Most bytes of a rank; NaN also where memory is unknown."""
    low_s: Floats
    high_s: Floats
    """In 8 of 10 cases a step takes between ``low_s`` and ``high_s``, as far as kernels and collectives tell."""
    communication_s: Mapping[str, Floats]
    """One of ``PARTS`` -> seconds that it would take by itself, hidden or not."""
    errors: Mapping[int, str]
    """Row of a plan that only its costs show to be impossible -> the reason."""
    inputs_s: Floats | float = 0.0
    """The input pipeline needs so long for the examples of a step, next to everything else."""

    @property
    def ranks_s(self) -> Floats:
        """Return the seconds of a step whose examples are always there; the interval belongs to these."""
        return self.compute_s + self.bubble_s + self.update_s + self.exposed_s + self.once_s

    @property
    def step_s(self) -> Floats:
        """Return the seconds of a step: as long as its ranks take, or its examples."""
        return np.maximum(self.ranks_s, self.inputs_s)

    @property
    def no_overlap_s(self) -> Floats:
        """Return the seconds of a step whose communication is all in the open."""
        open_s = sum(self.communication_s.values(), np.zeros_like(self.once_s))
        return np.maximum(self.compute_s + self.bubble_s + self.update_s + self.once_s + open_s, self.inputs_s)


_ARRAYS = (
    "compute_s",
    "bubble_s",
    "update_s",
    "exposed_s",
    "once_s",
    "start_up_share",
    "memory_bytes",
    "low_s",
    "high_s",
)


@dataclass(frozen=True)
class Judge:
    """It finds the costs of plans; what does not depend on the number of devices is worked out once."""

    source: StepSource
    is_gpu: bool = False
    """True if the allocator of a GPU counts."""
    _works: dict[tuple[int, ParallelDegrees], WorkColumns] = field(default_factory=dict, repr=False)
    _structures: dict[tuple[object, ...], StageStructure] = field(default_factory=dict, repr=False)

    def closed_form(self, plans: Candidates, topology: Topology) -> ClosedForm:
        """Compute time and memory of all plans.

        Args:
            plans: all plans, as columns.
            topology: the links between the ranks of the job.
        """
        found = {name: np.full(len(plans), np.nan) for name in (*_ARRAYS, *PARTS)}
        rows = np.flatnonzero(plans.reason == VALID)
        for part in PARTS:
            found[part][rows] = 0.0
        sizes = _sizes(plans, rows)
        self.source.prepare(sorted({one for own in sizes.values() for one in own}), list(sizes))
        costs, errors = dict[tuple[ParallelDegrees, bool, tuple[int, ...]], StageCosts](), dict[int, str]()
        groups = [(own, plans.degrees_of(int(own[0]))) for own in _groups(plans, rows)]
        many: dict[tuple[int, ParallelDegrees], dict[ParallelDegrees, None]] = {}
        for own, degrees in groups:
            many.setdefault((int(plans.combination[own[0]]), _dividing(degrees)), {})[degrees] = None
        alike_of: dict[ParallelDegrees, list[tuple[int, ...]]] = {}
        for own, degrees in groups:
            row, number, dividing = int(own[0]), int(plans.combination[own[0]]), _dividing(degrees)
            combination = plans.combinations[number]
            try:
                if dividing not in alike_of:
                    alike_of[dividing] = self._alike(dividing, sizes[dividing])
            except CdmppError as error:
                errors |= dict.fromkeys(map(int, own), str(error))
                continue
            for batches in alike_of[dividing]:
                key, taken = (
                    (dividing, bool(plans.recompute[row]), batches),
                    own[np.isin(plans.micro_batch[own], batches)],
                )
                try:
                    if len(taken) and key not in costs:
                        costs[key] = self._stage_costs(*key, combination, topology)
                    if len(taken):
                        which = np.searchsorted(batches, plans.micro_batch[taken])
                        _fill(found, taken, plans, which, costs[key], combination, degrees, [*many[number, dividing]])
                except CdmppError as error:
                    errors |= dict.fromkeys(map(int, taken), str(error))
        return ClosedForm(
            **{name: found[name] for name in _ARRAYS},
            communication_s={part: found[part] for part in PARTS},
            errors=errors,
        )

    def _work(self, size: int, degrees: ParallelDegrees) -> WorkColumns:
        split = replace(degrees, pp=1) if degrees.pp > 1 else degrees
        if (size, split) not in self._works:
            self._works[size, split] = WorkColumns(size, self.source.work(size, split))
        return self._works[size, split]

    def _alike(self, degrees: ParallelDegrees, sizes: Sequence[int]) -> list[tuple[int, ...]]:
        """Divide micro-batches into those that run the same ops: one example may run other ones than several do."""
        found: dict[tuple[object, ...], list[int]] = {}
        for size in sizes:
            found.setdefault(self._work(size, degrees).ops, []).append(size)
        return [tuple(own) for own in found.values()]

    def _stage_costs(
        self, degrees: ParallelDegrees, recomputes: bool, sizes: tuple[int, ...], combination: Combination,
        topology: Topology,
    ) -> StageCosts:  # fmt: skip
        works = [self._work(size, degrees) for size in sizes]
        cuts = _cuts(works[0].changed(recomputes)[0], degrees, combination, topology)
        key = (degrees, recomputes, cuts, works[0].ops)
        if key not in self._structures or not self._structures[key].knows(sizes):
            self._structures[key] = StageStructure(degrees, recomputes, works[0], works[-1], self.is_gpu, cuts)
        return StageCosts(works, self._structures[key], topology)


def _dividing(degrees: ParallelDegrees) -> ParallelDegrees:
    return ParallelDegrees(**{name: getattr(degrees, name) for name in DIVIDING})


def _cuts(rank: RankGraph, degrees: ParallelDegrees, combination: Combination, topology: Topology) -> tuple[int, ...]:
    """Places of ops with which the second and later stages begin, as the pipeline itself chooses them."""
    pipeline = next((one for one in combination.model_parallel if isinstance(one, Pipeline)), None)
    if pipeline is None:
        return ()
    pair = Mesh(degrees).group_of(0, ("pp",))[:2]
    return pipeline.cut_places(
        rank, degrees.pp, lambda size: float(topology.latency_s("send_recv", np.array([size]), pair)[0])
    )


def _groups(plans: Candidates, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Rows of plans that differ only in their micro-batches and schedules, in the order of their first rows."""
    if not len(rows):
        return []
    keys = np.column_stack([plans.combination, plans.recompute, plans.degrees])[rows]
    starts = np.flatnonzero((np.diff(keys, axis=0) != 0).any(axis=1)) + 1  # plans of one combination stand together
    found: dict[tuple[int, ...], list[NDArray[np.int64]]] = {}
    for part, own in zip(np.split(keys, starts), np.split(rows, starts), strict=True):
        found.setdefault(tuple(map(int, part[0])), []).append(own)
    return [np.concatenate(parts) for parts in found.values()]


def _sizes(plans: Candidates, rows: NDArray[np.int64]) -> dict[ParallelDegrees, tuple[int, ...]]:
    """Sizes of micro-batches that are asked for under each division of the model, rising."""
    columns = plans.degrees[rows]
    columns[:, [DEGREES.index(name) for name in REPLICAS]] = 1
    found: dict[tuple[int, ...], list[int]] = {}
    for row in np.unique(np.column_stack([columns, plans.micro_batch[rows]]), axis=0):
        found.setdefault(tuple(map(int, row[:-1])), []).append(int(row[-1]))
    return {ParallelDegrees(**dict(zip(DEGREES, key, strict=True))): tuple(sizes) for key, sizes in found.items()}


def _fill(
    found: dict[str, Floats], own: NDArray[np.int64], plans: Candidates, which: NDArray[np.int64], stages: StageCosts,
    combination: Combination, degrees: ParallelDegrees, many_degrees: Sequence[ParallelDegrees],
) -> None:  # fmt: skip
    """Write the plans ``own``, which have the same degrees and strategies.

    ``which`` are places of their micro-batches, and ``many_degrees`` the degrees of all plans that differ from them
    only in those of the replicas: they are judged at once.
    """
    piped = degrees.pp > 1
    strategy = combination.strategy.on_backend(stages.topology.backend)
    strategy = strategy.in_pipeline() if piped else strategy
    sizes = {name: getattr(degrees, name) for name in combination.replicating}
    many = plans.micro_batches[own]
    asked = (strategy, degrees, many_degrees, combination.replicating)
    replicas, more = stages.replicas(*asked), None
    if not piped and many.max() > 1 and strategy.exchanges_each_batch:
        more = [stages.replicas(*asked, batches) for batches in (2, 3)]
    forward_s, backward_s = (stages.pass_s[phase] for phase in ("forward", "backward"))
    update_s = stages.update_s / replicas.shards
    busiest = (np.arange(len(forward_s)), (forward_s + backward_s).argmax(axis=1))
    longest_s = (forward_s + backward_s)[busiest][which]
    passes_s, in_flight, kept = np.empty(len(own)), *(np.full((len(own), forward_s.shape[1]), n) for n in (1, 0))
    for pipeline in (one for one in combination.model_parallel if isinstance(one, Pipeline)):
        kept = np.stack([pipeline.kept(stage, degrees.pp, many) for stage in range(degrees.pp)], axis=1)
    for number, schedule in enumerate(plans.schedules):
        rows = plans.schedule[own] == number
        passes_s[rows] = schedule.passes_s(forward_s[which[rows]], backward_s[which[rows]], many[rows])
        if piped:
            in_flight[rows] = schedule.in_flight(degrees.pp, many[rows])
    received_s = (stages.received_s["forward"] + stages.received_s["backward"])[busiest][which] * many
    found[SENDS][own] = split = received_s
    for part, seconds in stages.split_s.items():
        both_s = stages.phase_s("forward", seconds) + stages.phase_s("backward", seconds)
        found[part][own] = both_s[busiest][which] * many
        split = split + found[part][own]
    # A stage ends its last backward pass before those in front of it do; then come gradients and update.
    ahead_s = np.cumsum(backward_s, axis=1) - backward_s
    exposed_s = _chained_s(replicas.exposed_s, piped and strategy.ends_backward)
    for holders, sum_s in replicas.tied:  # a stage waits for the last one that holds the same parameter
        ends_s = (exposed_s - ahead_s)[:, holders]
        ahead_s[:, holders] -= ends_s.max(axis=1, keepdims=True) - ends_s
        exposed_s[:, holders] += sum_s
    last = (busiest[0], (exposed_s + update_s - ahead_s).argmax(axis=1))
    hidden_s = ahead_s[last]
    found["compute_s"][own] = many * longest_s - split
    found["bubble_s"][own] = passes_s - many * longest_s - hidden_s[which]
    found["update_s"][own] = update_s[last][which]
    replicas_s = exposed_s[last][which]
    if more is not None:
        replicas_s = _of_batches(many, replicas_s, *(one.exposed_s[last][which] for one in more))
    found["exposed_s"][own] = split + replicas_s
    found["once_s"][own] = stages.once_s[which] * (1 if piped else many)
    computed_s = sum(found[name][own] for name in ("compute_s", "bubble_s", "update_s", "once_s"))
    works = [one.work for one in stages.works]
    for name, of_kernels, of_exchanges in (
        ("low_s", [one.low for one in works], replicas.low), ("high_s", [one.high for one in works], replicas.high),
    ):  # fmt: skip
        found[name][own] = computed_s * np.array(of_kernels)[which] + found["exposed_s"][own] * of_exchanges
    found["memory_bytes"][own] = stages.peak_bytes(strategy, sizes, which, many, in_flight, kept)
    sent_s = sum(replicas.part_s.values(), np.zeros(1))
    start_up_s = replicas_s * (replicas.start_up_s.sum() / (sent_s.sum() or 1.0))
    start_up_s = start_up_s + stages.received_start_up_s[busiest[1]][which] * many
    for phase in ("forward", "backward"):
        start_up_s = start_up_s + stages.phase_s(phase, stages.split_start_up_s)[busiest][which] * many
    rest_s = found["exposed_s"][own] - found[HALOS][own]
    found["start_up_share"][own] = start_up_s / np.where(rest_s > 0, rest_s, 1.0)
    for part, each in replicas.part_s.items():
        found[part][own] = each.max()
        if more is not None:
            found[part][own] = _of_batches(many, each.max(), *(one.part_s[part].max() for one in more))


def _chained_s(exposed_s: Floats, is_chained: bool) -> Floats:
    """Return the exposed seconds of each stage; a chained one waits for those of all stages behind it too."""
    return np.cumsum(exposed_s[:, ::-1], axis=1)[:, ::-1].copy() if is_chained else exposed_s.copy()


def _of_batches(many: NDArray[np.int64], one: Floats, two: Floats, three: Floats) -> Floats:
    """Return seconds of ``many`` batches, of those of one, two and three: each further one adds as much."""
    return np.where(many == 1, one, two + (many - 2) * (three - two))
