"""HeldStages: what the stages of a cut hold and send, which is the same whether they recompute or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.network.training_step import StepMemory
from cdmpp.plans.cut import Cut, stages_of
from cdmpp.plans.divided_backward import DividedBackward
from cdmpp.plans.live_bytes import LiveBytes
from cdmpp.plans.memory import Memory, rounded_bytes
from cdmpp.plans.op_bytes import OpBytes
from cdmpp.plans.overlap import Floats
from cdmpp.plans.shared_parameters import rank_bytes_of
from cdmpp.plans.stage_bytes import stacked, taken
from cdmpp.plans.stages import Stage
from cdmpp.plans.work_columns import WorkColumns
from cdmpp.steps.step_graph import RankGraph
from cdmpp.steps.strategy import RankBytes, Strategy
from cdmpp.steps.transforms.recompute import can_recompute


@dataclass(frozen=True)
class HeldKind:
    """Stages that hold as much."""

    stage: Stage
    """One of them, of the smallest micro-batch."""
    held: tuple[StepMemory, StepMemory]
    """It would hold this by itself: of the smallest and the largest micro-batch."""
    memory: Memory
    """The same with the results that are alive, of the smallest one."""
    sizes: tuple[OpBytes, OpBytes]
    """Bytes of its ops: of the smallest and the largest one."""
    is_gpu: bool

    @cached_property
    def divided(self) -> DividedBackward:
        """Its backward pass in two parts; ``CdmppError`` as there."""
        return DividedBackward(self.stage)

    def live(self, recomputes: bool, shares: Floats, divides: bool = False) -> LiveBytes:
        """Return the results alive in the passes of micro-batches between the smallest (0) and the largest one (1)."""
        names = tuple(one.name for one in can_recompute(self.stage.rank)) if recomputes else ()
        low, high = self.held
        live_bytes: Any = np.rint(low.live_bytes + shares * (high.live_bytes - low.live_bytes)).astype(np.int64)
        memory = replace(self.memory, pending=self.divided.pending if divides else ())
        sized = memory.sized(replace(low, live_bytes=live_bytes), self.sizes[0].up_to(self.sizes[1], shares))
        return sized.live(names, self.is_gpu)

    @cached_property
    def _gradients(self) -> Counter[int]:
        """Bytes of a gradient -> how many have as many."""
        return Counter(one.bytes for one in self.stage.rank.gradients)

    @cached_property
    def _known(self) -> dict[object, tuple[RankBytes, int]]:
        return {}

    def rank_bytes(self, strategy: Strategy, sizes: Mapping[str, int], batches: int) -> tuple[RankBytes, int]:
        """Return what a rank holds, as ``Strategy.rank_bytes``, and what the allocator rounds up for it."""
        key = strategy, tuple(sizes.items()), batches
        if key not in self._known:
            own = rank_bytes_of(strategy, self.held[0], self.stage.rank, sizes, batches)
            more = rounded_bytes(self.held[0], self._gradients, own) if self.is_gpu else 0
            self._known[key] = own, more
        return self._known[key]


@dataclass(frozen=True)
class HeldStages:
    """The stages of one cut."""

    low: WorkColumns
    high: WorkColumns
    """The smallest and the largest micro-batch, which run the same ops."""
    cuts: tuple[int, ...]
    """Places of ops with which the second and later stages begin."""
    is_gpu: bool
    """True if the allocator of a GPU counts."""

    def knows(self, sizes: Sequence[int]) -> bool:
        """Return True if bytes at these sizes of a micro-batch follow: two sizes tell all others, one tells its own."""
        return self.low.batch < self.high.batch or all(one == self.low.batch for one in sizes)

    @cached_property
    def _cut(self) -> Cut:
        return self.low.cut(self.cuts)

    @cached_property
    def messages(self) -> Mapping[str, tuple[NDArray[np.int64], Floats]]:
        """Phase -> sender of each tensor, and its bytes for the smallest and the largest micro-batch.

        Gradients are those that come back to the stage before.
        """
        senders: dict[str, list[int]] = {"forward": [], "backward": []}
        ends: dict[str, list[Any]] = {"forward": [np.zeros((2, 0))], "backward": [np.zeros((2, 0))]}
        sizes = np.array([self.low.op_bytes.results, self.high.op_bytes.results])
        for number, cut in enumerate(self.cuts):
            sent, are_trained = self._cut.on.crossing(cut, sizes)
            returned = sent[:, are_trained]
            for phase, sender, own in (("forward", number, sent), ("backward", number + 1, returned)):
                senders[phase] += [sender] * own.shape[1]
                ends[phase].append(own)
        return {
            phase: (np.array(own, np.int64), np.concatenate(ends[phase], axis=1).T) for phase, own in senders.items()
        }

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """Number of the first stage that holds as much as this one, of each stage."""
        if not self.cuts:
            return (0,)
        return firsts(self._signatures)

    @cached_property
    def _signatures(self) -> tuple[tuple[object, ...], ...]:
        """Each stage has one, equal for stages that hold as much, also for those of other cuts of the same work."""
        low, high = self.low.op_kinds, self.high.op_kinds
        return self.low.kinds(self.cuts).memory(low * (int(high.max(initial=0)) + 1) + high)

    @cached_property
    def kinds(self) -> dict[int, HeldKind]:
        """Stage of ``alike`` -> what all of its kind hold; empty: unknown."""
        if any(columns.work.memory is None for columns in (self.low, self.high)):
            return {}
        return {number: self._kind(number) for number in dict.fromkeys(self.alike)}

    def _kind(self, number: int) -> HeldKind:
        """Return what a stage holds; stages of several cuts share it, if they hand the same gradients back."""
        if not self.cuts:
            return self._made(number)
        key = self.high, self.is_gpu, self._cut.returned(number), *self._signatures[number]
        known = self.low.held_kinds
        if key not in known:
            known[key] = self._made(number)
        found: HeldKind = known[key]
        return found

    def _made(self, number: int) -> HeldKind:
        stage = self._cut.stage(number) if self.cuts else stages_of(self.low.work.rank, ())[0]
        held, sizes = list[StepMemory](), list[OpBytes]()
        for columns in (self.low, self.high):
            assert columns.work.memory is not None
            held.append(held_by(columns.work.memory, columns.work.rank, stage, number))
            sizes.append(columns.op_bytes.at(stage.places))
        memory = Memory(held[0], stage.rank, self.is_gpu, stage.outputs)
        return HeldKind(stage, (held[0], held[1]), memory, (sizes[0], sizes[1]), self.is_gpu)

    @cached_property
    def divided(self) -> tuple[tuple[NDArray[np.int64], Floats, NDArray[np.bool_]], ...]:
        """Return for each stage the places in the whole rank of the ops of a divided backward pass, in two parts.

        Next to each place the share of the op's seconds that it has there, and whether it is of the second part.
        ``CdmppError`` where it cannot be divided.
        """
        found, made = list[tuple[NDArray[np.int64], Floats, NDArray[np.bool_]]](), dict[object, DividedBackward]()
        for number, like in enumerate(self.alike):
            key = like, self._cut.returned(number)
            if key not in made:
                made[key] = DividedBackward(self._cut.stage(number))
            one = made[key]
            own = [place for place, op in enumerate(one.rank.ops) if op.phase == "backward"]
            places = self._cut.places[number][[one.places[place] for place in own]]
            found.append((places, one.shares[own], np.array(own, np.int64) >= one.first_weights))
        return tuple(found)

    @cached_property
    def ends(self) -> tuple[StepMemory, ...]:
        """All stages hold this, of the smallest and the largest micro-batch; empty: unknown. Arrays over stages."""
        found = list[StepMemory]()
        for end, columns in enumerate((self.low, self.high) if self.kinds else ()):
            assert columns.work.memory is not None
            held = stacked([self.kinds[number].held[end] for number in self.alike])
            inputs: Any = np.where(np.arange(len(self.alike)) == 0, columns.work.memory.input_bytes, 0)
            found.append(replace(held, input_bytes=inputs))
        return tuple(found)

    def live(self, recomputes: bool, shares: Floats, divides: bool = False) -> LiveBytes:
        """Return what is alive on all stages; arrays (micro-batches, stages).

        Args:
            recomputes: whether all modules are recomputed.
            shares: place of each micro-batch between the smallest (0) and the largest one (1).
            divides: whether gradients wait between two parts of backward passes.
        """
        known = self._live.setdefault((recomputes, divides), {})
        if new := [one for one in dict.fromkeys(shares.tolist()) if one not in known]:
            found = self._live_of(recomputes, np.array(new), divides)
            known.update((share, taken(found, row)) for row, share in enumerate(new))
        return stacked([known[one] for one in shares.tolist()])

    @cached_property
    def _live(self) -> dict[tuple[bool, bool], dict[float, LiveBytes]]:
        """Results that are alive, by the place of each micro-batch; each is worked out once."""
        return {}

    def _live_of(self, recomputes: bool, shares: Floats, divides: bool) -> LiveBytes:
        each = {number: kind.live(recomputes, shares, divides) for number, kind in self.kinds.items()}
        found = [[getattr(each[number], one.name) for number in self.alike] for one in fields(LiveBytes)]
        return LiveBytes(*(np.stack([own + np.zeros(len(shares), np.int64) for own in one], axis=1) for one in found))


def firsts(kinds: Sequence[object]) -> tuple[int, ...]:
    """Return the place of the first that equals each one."""
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
