"""Stage structure: which ops each stage of a pipeline runs, and what it holds, whatever the size of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.network.training_step import StepMemory
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.memory import LiveBytes, Memory
from cdmpp.plans.overlap import Floats
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.stages import Stage, stages_of
from cdmpp.steps.step_graph import RankGraph, StepGraph
from cdmpp.steps.strategy import RankBytes
from cdmpp.steps.transforms.accumulate import accumulate
from cdmpp.steps.transforms.recompute import can_recompute, recompute

AnyBytes = TypeVar("AnyBytes", StepMemory, LiveBytes, RankBytes)


@dataclass(frozen=True)
class WorkColumns:
    """The work of one rank for one micro-batch, as arrays over its ops."""

    batch: int
    work: RankWork

    @cached_property
    def seconds(self) -> Floats:
        """Seconds of each op with its pauses."""
        return np.array([op.delay_s + op.duration_s + op.gap_s for op in self.work.rank.ops])

    @cached_property
    def ops(self) -> tuple[object, ...]:
        """Return what is the same for micro-batches that run the same ops, whatever their sizes."""
        exchanges = tuple((one.kind, one.degree, one.after) for one in self.work.exchanges)
        return tuple((op.phase, op.inputs) for op in self.work.rank.ops), exchanges

    @cached_property
    def gaps_s(self) -> Floats:
        """Pause after each op."""
        return np.array([op.gap_s for op in self.work.rank.ops])

    @cached_property
    def _stages(self) -> dict[tuple[int, ...], tuple[Stage, ...]]:
        return {}

    def stages(self, cuts: tuple[int, ...]) -> tuple[Stage, ...]:
        """Return the stages that begin with the ops at ``cuts``, where nothing is recomputed."""
        if cuts not in self._stages:
            self._stages[cuts] = stages_of(self.work.rank, cuts)
        return self._stages[cuts]

    def changed(self, recomputes: bool) -> tuple[RankGraph, NDArray[np.int64]]:
        """Return the rank as it runs where all modules are recomputed, or as it is, and the places its ops had."""
        return self._recomputed if recomputes else (self.work.rank, np.arange(len(self.work.rank.ops)))

    @cached_property
    def _recomputed(self) -> tuple[RankGraph, NDArray[np.int64]]:
        rank = self.work.rank
        names = [one.name for one in can_recompute(rank)]
        numbered = replace(rank, ops=tuple(replace(op, duration_s=float(i)) for i, op in enumerate(rank.ops)))
        found, places = (recompute(StepGraph((one,)), names).ranks[0] for one in (rank, numbered))
        return found, np.array([op.duration_s for op in places.ops], np.int64)


@dataclass(frozen=True)
class StagePart:
    """One stage, with what it recomputes."""

    graph: RankGraph
    places: NDArray[np.int64]
    """Places of its ops among those of the whole rank; an op that runs twice has two."""
    share: float
    """Its share of the seconds of an update."""
    sent: tuple[tuple[int, ...], ...]
    """Bytes of each tensor that goes to the next stage, of the smallest and the largest micro-batch."""
    returned: tuple[tuple[int, ...], ...]
    """The same of gradients that go to the stage before."""
    live: tuple[tuple[int, StepMemory, LiveBytes], ...]
    """Batch, what it would hold by itself, and results alive in its passes: of the smallest and the largest
    micro-batch. Empty: unknown."""
    tied: tuple[str, ...]
    """Names of parameters that other stages hold too."""

    def is_in(self, phase: str) -> NDArray[np.bool_]:
        """Return which of its ops are of a phase."""
        return self._phases == phase

    @cached_property
    def _accumulated(self) -> dict[int, StagePart]:
        return {1: self}

    def accumulated(self, batches: int) -> StagePart:
        """Return the stage as it runs where the gradients of several batches are added up."""
        if batches not in self._accumulated:
            numbered = (replace(op, duration_s=float(place)) for place, op in enumerate(self.graph.ops))
            rank = replace(self.graph, ops=tuple(numbered), start_s=0.0)
            graph = accumulate(StepGraph((rank,)), batches).ranks[0]
            places = self.places[np.array([op.duration_s for op in graph.ops], np.int64)]
            self._accumulated[batches] = replace(self, graph=graph, places=places)
        return self._accumulated[batches]

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Return what its exchanges depend on, next to the seconds of its ops; equal for stages that are alike."""
        graph = self.graph
        gradients = tuple((one.bytes, one.ready_after, one.dtype, one.is_used) for one in graph.gradients)
        modules = tuple(replace(one, name="") for one in graph.modules)
        return len(graph.ops), self._phases.tobytes(), gradients, modules, graph.buffers, self.share

    @cached_property
    def _phases(self) -> NDArray[np.str_]:
        return np.array([op.phase for op in self.graph.ops])


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

    @cached_property
    def ends(self) -> tuple[tuple[StepMemory, LiveBytes], ...]:
        """What all stages hold and what is alive, of the smallest and the largest micro-batch; empty: unknown.

        Each number is an array over stages, (stages, 1).
        """
        if not all(one.live for one in self.stages):
            return ()
        return tuple(
            (stacked([held for _, held, _ in ends]), stacked([live for _, _, live in ends]))
            for ends in zip(*(one.live for one in self.stages), strict=True)
        )

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """Number of the first stage that is like this one in all that a strategy asks for, of each stage."""
        found = dict[object, int]()
        return tuple(found.setdefault(one.key, number) for number, one in enumerate(self.stages))

    @cached_property
    def stages(self) -> tuple[StagePart, ...]:
        """All stages."""
        rank, old = self.low.changed(self.recomputes)
        held = [one.stages(self.cuts) for one in (self.low, self.high)]
        cut = stages_of(rank, self.cuts) if self.recomputes else held[0]
        return tuple(
            StagePart(
                replace(one.rank, rank=0), old[list(one.places)], one.share,
                tuple(ends[number].sent_bytes for ends in held), tuple(ends[number].returned_bytes for ends in held),
                self._live(number, [ends[number] for ends in held]), one.tied,
            )
            for number, one in enumerate(cut)
        )  # fmt: skip

    def _live(self, number: int, stages: Sequence[Stage]) -> tuple[tuple[int, StepMemory, LiveBytes], ...]:
        found = []
        for columns, stage in zip((self.low, self.high), stages, strict=True):
            if columns.work.memory is not None:
                held = held_by(columns.work.memory, columns.work.rank, stage, number)
                names = tuple(one.name for one in can_recompute(stage.rank)) if self.recomputes else ()
                live = Memory(held, stage.rank, self.is_gpu, stage.outputs).live(names, self.is_gpu)
                found.append((columns.batch, held, live))
        return tuple(found)


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


def stacked(each: Sequence[AnyBytes]) -> AnyBytes:
    """Return the bytes of all stages: each number is an array, (stages, 1)."""
    values: dict[str, Any] = {}
    for one in fields(each[0]):
        values[one.name] = np.array([[getattr(stage, one.name)] for stage in each])
    return replace(each[0], **values)


def between(low: AnyBytes, high: AnyBytes, share: Floats) -> AnyBytes:
    """Return bytes between those of two micro-batches, as arrays: they grow as the micro-batch does."""
    values = {}
    for one in fields(low):
        first, last = getattr(low, one.name), getattr(high, one.name)
        values[one.name] = first + share * (last - first)
    return replace(low, **values)
