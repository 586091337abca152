"""Stage structure: which ops each stage of a pipeline runs, and what it holds, whatever the size of a micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.network.training_step import StepMemory
from cdmpp.plans.bare import bare
from cdmpp.plans.cut import Cut, stages_of
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.live_bytes import LiveBytes
from cdmpp.plans.memory import Memory
from cdmpp.plans.overlap import Floats
from cdmpp.plans.stage_bytes import stacked
from cdmpp.plans.stages import Stage
from cdmpp.plans.work_columns import WorkColumns
from cdmpp.steps.step_graph import Gradient, ModuleSpan, RankGraph, StepGraph
from cdmpp.steps.transforms.accumulate import accumulate, accumulated_places
from cdmpp.steps.transforms.recompute import can_recompute


@dataclass(frozen=True)
class StageKind:
    """Stages whose replicas exchange alike: they differ in names, and in how long their ops take."""

    graph: RankGraph
    """Gradients, modules and phases of ops, with what is recomputed."""

    @cached_property
    def _accumulated(self) -> dict[int, tuple[RankGraph, NDArray[np.int64]]]:
        return {}

    def accumulated(self, batches: int) -> tuple[RankGraph, NDArray[np.int64]]:
        """Return the stage as it runs where the gradients of several batches are added up, and the places of its ops.

        These are the ones among the ops of one batch.
        """
        if batches not in self._accumulated:
            graph = accumulate(StepGraph((self.graph,)), batches).ranks[0]
            self._accumulated[batches] = graph, np.array(accumulated_places(self.graph, batches), np.int64)
        return self._accumulated[batches]


@dataclass(frozen=True)
class HeldKind:
    """Stages that hold as much."""

    modules: tuple[ModuleSpan, ...]
    gradients: Counter[int]
    """Bytes of a gradient -> how many have as many."""
    ends: tuple[tuple[StepMemory, LiveBytes], ...]
    """What a stage would hold by itself, and results alive in its passes: of the smallest and the largest
    micro-batch."""


@dataclass(frozen=True)
class StageStructure:
    """One division of the model: into stages, and along the degrees that divide operators."""

    degrees: ParallelDegrees
    """Those of replicas are 1."""
    recomputes: bool
    low: WorkColumns
    high: WorkColumns
    """The smallest and the largest micro-batch."""
    is_gpu: bool
    """True if the allocator of a GPU counts."""
    cuts: tuple[int, ...]
    """Places of ops with which the second and later stages begin."""

    def knows(self, sizes: Sequence[int]) -> bool:
        """Return True if bytes at these sizes of a micro-batch follow: two sizes tell all others, one tells its own."""
        return self.low.batch < self.high.batch or all(one == self.low.batch for one in sizes)

    @property
    def count(self) -> int:
        """Return the number of stages."""
        return len(self.cuts) + 1

    @cached_property
    def _ends(self) -> tuple[Cut, Cut]:
        """The smallest and the largest micro-batch, where nothing is recomputed."""
        return self.low.cut(self.cuts), self.high.cut(self.cuts)

    @cached_property
    def _cut(self) -> Cut:
        return self.low.cut(self.cuts, self.recomputes)

    @cached_property
    def places(self) -> tuple[NDArray[np.int64], ...]:
        """Places of the ops of each stage among those of the whole rank; an op that runs twice has two."""
        old = self.low.places(self.recomputes)
        return tuple(old[own] for own in self._new)

    def in_phase(self, phase: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return places of ops of one phase, stage after stage; where each stage that has any begins; these stages."""
        if phase not in self._in_phase:
            is_in = np.array([op.phase == phase for op in self.low.rank(self.recomputes).ops])
            each = [old[is_in[new]] for old, new in zip(self.places, self._new, strict=True)]
            counts = np.array([len(one) for one in each])
            (stages,) = np.nonzero(counts)
            starts = np.concatenate([[0], np.cumsum(counts[stages])])[:-1]
            self._in_phase[phase] = np.concatenate(each), starts, stages
        return self._in_phase[phase]

    @cached_property
    def _in_phase(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        return {}

    @cached_property
    def _new(self) -> tuple[NDArray[np.int64], ...]:
        """Places of the ops of each stage in the rank as it runs."""
        return self._cut.places if self.cuts else (np.arange(len(self.low.places(self.recomputes))),)

    @cached_property
    def shares(self) -> Floats:
        """Share of each stage in the seconds of an update."""
        return np.array(self._cut.shares if self.cuts else (1.0,))

    @cached_property
    def sent(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Bytes of each tensor that each stage sends to the next, of the smallest and the largest micro-batch."""
        return self._of_ends(Cut.sent_bytes)

    @cached_property
    def returned(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """The same of gradients that go to the stage before."""
        return self._of_ends(Cut.returned_bytes)

    def _of_ends(self, asked: Callable[[Cut, int], tuple[int, ...]]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        if not self.cuts:
            return (((), ()),)
        return tuple(tuple(asked(one, number) for one in self._ends) for number in range(self.count))

    @cached_property
    def tied(self) -> tuple[tuple[tuple[Gradient, ...], tuple[str, ...]], ...]:
        """Gradients of each stage, and names of the parameters that other stages hold too."""
        if not self.cuts:
            return ()
        return tuple((self._cut.gradients[number], self._cut.tied(number)) for number in range(self.count))

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """Number of the first stage whose replicas exchange as those of this one, of each stage."""
        return _firsts(self.low.kinds(self.cuts, self.recomputes).exchange if self.cuts else [()])

    @cached_property
    def kinds(self) -> dict[int, StageKind]:
        """Stage of ``alike`` -> what all of its kind are."""
        found = dict[int, StageKind]()
        for number in dict.fromkeys(self.alike):
            found[number] = StageKind(
                self._cut.exchanging(number) if self.cuts else bare(self.low.rank(self.recomputes))
            )
        return found

    @cached_property
    def held_alike(self) -> tuple[int, ...]:
        """Number of the first stage that holds as much as this one, of each stage."""
        ends = (one.kinds(self.cuts) for one in (self.low, self.high) if self.cuts)
        kinds = [*zip(*(one.memory for one in ends), strict=True)] or [()]
        return _firsts(kinds)

    @cached_property
    def held(self) -> dict[int, HeldKind]:
        """Stage of ``held_alike`` -> what all of its kind hold; empty: unknown."""
        if any(columns.work.memory is None for columns in (self.low, self.high)):
            return {}
        return {number: self._held(number) for number in dict.fromkeys(self.held_alike)}

    def _held(self, number: int) -> HeldKind:
        stage = self._ends[0].stage(number) if self.cuts else stages_of(self.low.work.rank, ())[0]
        names = tuple(one.name for one in can_recompute(stage.rank)) if self.recomputes else ()
        found, own = list[tuple[StepMemory, LiveBytes]](), list[Memory]()
        for columns in (self.low, self.high):
            whole, memory = columns.work.rank, columns.work.memory
            assert memory is not None
            held, ops = held_by(memory, whole, stage, number), tuple([whole.ops[place] for place in stage.places])
            first = own[0] if own else Memory(held, stage.rank, self.is_gpu, stage.outputs)
            own.append(first.sized(held, ops))
            found.append((held, own[-1].live(names, self.is_gpu)))
        rank = stage.rank
        return HeldKind(rank.modules, Counter(one.bytes for one in rank.gradients), tuple(found))

    @cached_property
    def ends(self) -> tuple[tuple[StepMemory, LiveBytes], ...]:
        """What all stages hold and what is alive, of the smallest and the largest micro-batch; empty: unknown.

        Each number is an array over stages.
        """
        if not self.held:
            return ()
        found, each = list[tuple[StepMemory, LiveBytes]](), [self.held[number].ends for number in self.held_alike]
        for columns, own in zip((self.low, self.high), zip(*each, strict=True), strict=True):
            assert columns.work.memory is not None
            held, live = stacked([held for held, _ in own]), stacked([live for _, live in own])
            inputs: Any = np.where(np.arange(self.count) == 0, columns.work.memory.input_bytes, 0)
            found.append((replace(held, input_bytes=inputs), live))
        return tuple(found)


def _firsts(kinds: Sequence[object]) -> tuple[int, ...]:
    """Place of the first that equals each one."""
    found = dict[object, int]()
    return tuple(found.setdefault(kind, number) for number, kind in enumerate(kinds))


def held_by(whole: StepMemory, rank: RankGraph, stage: Stage, number: int) -> StepMemory:
    """Return what a stage would hold if it were the only one of its number: its part of ``whole``.

    Inputs are on the first stage; targets, which the last one has, are small.
    """
    if len(stage.places) == len(rank.ops):
        return whole
    trained = sum(one.bytes for one in stage.rank.gradients) / (sum(one.bytes for one in rank.gradients) or 1)
    known = sum(one.bytes for one in rank.modules)
    kept = sum(one.bytes for one in stage.rank.modules) / known if known else trained
    return StepMemory(
        round(kept * whole.parameter_bytes),
        round(trained * whole.gradient_bytes),
        round(trained * whole.state_bytes),
        sum(one.bytes for one in stage.rank.buffers),
        0 if number else whole.input_bytes,
        0,
        0,
        round(trained * whole.update_bytes),
    )
