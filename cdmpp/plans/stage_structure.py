"""Stage structure: which ops each stage of a pipeline runs, and what it holds, whatever the size of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cdmpp.plans.bare import bare
from cdmpp.plans.cut import Cut
from cdmpp.plans.held_stages import HeldStages, firsts
from cdmpp.plans.overlap import Floats
from cdmpp.plans.work_columns import WorkColumns
from cdmpp.steps.step_graph import Gradient, RankGraph, StepGraph
from cdmpp.steps.transforms.accumulate import accumulate, accumulated_places


@dataclass(frozen=True)
class AccumulatedStage:
    """A stage that adds up the gradients of several batches."""

    graph: RankGraph
    places: NDArray[np.int64]
    """Places of its ops among those of one batch."""
    is_update: NDArray[np.bool_]
    """Which of its ops are of the update."""


@dataclass(frozen=True)
class StageKind:
    """Stages whose replicas exchange alike: they differ in names, and in how long their ops take."""

    graph: RankGraph
    """Gradients, modules and phases of ops, with what is recomputed."""

    @cached_property
    def _accumulated(self) -> dict[int, AccumulatedStage]:
        return {}

    def accumulated(self, batches: int) -> AccumulatedStage:
        """Return the stage as it runs where the gradients of several batches are added up."""
        if batches not in self._accumulated:
            graph = accumulate(StepGraph((self.graph,)), batches).ranks[0]
            is_update = np.array([op.phase == "update" for op in graph.ops], np.bool_)
            places = np.array(accumulated_places(self.graph, batches), np.int64)
            self._accumulated[batches] = AccumulatedStage(graph, places, is_update)
        return self._accumulated[batches]


@dataclass(frozen=True)
class StageStructure:
    """One division of the model: into stages, and along the degrees that divide operators."""

    recomputes: bool
    held: HeldStages
    """Its stages hold and send this."""

    @property
    def low(self) -> WorkColumns:
        """Return the smallest micro-batch."""
        return self.held.low

    @property
    def high(self) -> WorkColumns:
        """Return the largest micro-batch."""
        return self.held.high

    @property
    def cuts(self) -> tuple[int, ...]:
        """Return the places of ops with which the second and later stages begin."""
        return self.held.cuts

    @property
    def count(self) -> int:
        """Return the number of stages."""
        return len(self.cuts) + 1

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
            is_in = self.low.columns(self.recomputes).phases == phase
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
    def tied(self) -> tuple[tuple[tuple[Gradient, ...], tuple[str, ...]], ...]:
        """Gradients of each stage, and names of the parameters that other stages hold too."""
        if not self.cuts:
            return ()
        return tuple((self._cut.gradients[number], self._cut.tied(number)) for number in range(self.count))

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """Number of the first stage whose replicas exchange as those of this one, of each stage."""
        return firsts(self.low.kinds(self.cuts, self.recomputes).exchange if self.cuts else [()])

    @cached_property
    def kinds(self) -> dict[int, StageKind]:
        """Stage of ``alike`` -> what all of its kind are."""
        found = dict[int, StageKind]()
        for number in dict.fromkeys(self.alike):
            found[number] = StageKind(
                self._cut.exchanging(number) if self.cuts else bare(self.low.rank(self.recomputes))
            )
        return found
