"""WorkColumns: the work of one rank for one micro-batch as arrays, and where it can be cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.plans.cut import Cut
from cdmpp.plans.cut_places import CutPlaces
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.op_bytes import OpBytes
from cdmpp.plans.op_columns import OpColumns
from cdmpp.plans.sources.source import RankWork, StepSource, StepTimes
from cdmpp.plans.stage_kinds import StageKinds
from cdmpp.steps.step_graph import RankGraph, StepGraph
from cdmpp.steps.strategy import Strategy
from cdmpp.steps.transforms.recompute import can_recompute, recompute, run_order


@dataclass(frozen=True)
class WorkColumns:
    """The work of one rank for one micro-batch, as arrays over its ops."""

    batch: int
    source: StepSource
    degrees: ParallelDegrees
    """Those that divide operators."""
    strategies: tuple[Strategy, ...] = ()
    """They say how operators are divided."""

    @cached_property
    def work(self) -> RankWork:
        """The work itself."""
        return self.source.work(self.batch, self.degrees, self.strategies)

    @cached_property
    def times(self) -> StepTimes:
        """How long its ops take."""
        return self.source.times(self.batch, self.degrees, self.strategies) or StepTimes.of(self.work)

    def timed_by(self, source: StepSource) -> WorkColumns:
        """Return the same work with the times of another source, whose ops, bytes and exchanges are the same."""
        found = replace(self, source=source)
        found.__dict__.update({name: value for name, value in self.__dict__.items() if name not in ("source", "times")})
        return found

    def rank(self, recomputes: bool) -> RankGraph:
        """Return the rank as it runs where all modules are recomputed, or as it is."""
        return self._recomputed if recomputes else self.work.rank

    @cached_property
    def _recomputed(self) -> RankGraph:
        return recompute(StepGraph((self.work.rank,)), self._modules).ranks[0]

    @cached_property
    def _modules(self) -> tuple[str, ...]:
        return tuple(one.name for one in can_recompute(self.work.rank))

    def places(self, recomputes: bool) -> NDArray[np.int64]:
        """Return the places that its ops had before modules were recomputed."""
        return self._again_places if recomputes else np.arange(len(self.work.rank.ops))

    @cached_property
    def _again_places(self) -> NDArray[np.int64]:
        return np.array([place for place, _ in run_order(self.work.rank, self._modules)])

    def columns(self, recomputes: bool) -> OpColumns:
        """Return the ops of ``rank`` as arrays."""
        if recomputes not in self._columns:
            self._columns[recomputes] = OpColumns(self.rank(recomputes))
        return self._columns[recomputes]

    @cached_property
    def _columns(self) -> dict[bool, OpColumns]:
        return {}

    @property
    def op_kinds(self) -> NDArray[np.int64]:
        """Return a number for each op, the same for those that write as many bytes and read as many results."""
        return self.columns(recomputes=False).op_kinds

    @cached_property
    def op_bytes(self) -> OpBytes:
        """Bytes that its ops write, keep and hand on."""
        return OpBytes.of(self.work.rank.ops)

    def cut_places(self, recomputes: bool) -> CutPlaces:
        """Return where the rank can be cut; ``CdmppError`` as ``CutPlaces``."""
        if recomputes not in self._cut_places:
            self._cut_places[recomputes] = CutPlaces(self.rank(recomputes))
        return self._cut_places[recomputes]

    @cached_property
    def _cut_places(self) -> dict[bool, CutPlaces]:
        return {}

    @cached_property
    def held_kinds(self) -> dict[object, Any]:
        """Bytes that stages of all cuts hold, by what stages have in common; ``HeldStages`` fills it."""
        return {}

    @cached_property
    def _cuts(self) -> dict[tuple[tuple[int, ...], bool], StageKinds]:
        return {}

    def cut(self, cuts: tuple[int, ...], recomputes: bool = False) -> Cut:
        """Return the rank cut at these places."""
        return self.kinds(cuts, recomputes).cut

    def kinds(self, cuts: tuple[int, ...], recomputes: bool = False) -> StageKinds:
        """Return which of its stages are alike."""
        if (cuts, recomputes) not in self._cuts:
            self._cuts[cuts, recomputes] = StageKinds(Cut(self.cut_places(recomputes), cuts))
        return self._cuts[cuts, recomputes]
