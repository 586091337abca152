"""Scheduled: what one rank of a pipeline runs in a step, micro-batch after micro-batch in the order of a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdmpp.plans.merged_stage import StageOps
from cdmpp.steps.derived import derived
from cdmpp.steps.exchange import START
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.schedule import FORWARD, INPUTS, Action
from cdmpp.steps.step_graph import Op, RankGraph
from cdmpp.steps.transforms.edit import moved_op


@dataclass(frozen=True)
class StageParts:
    """Ops of one stage for one micro-batch, as they are needed."""

    each: StageOps
    """Every micro-batch but the last has these."""
    last: StageOps
    """The last one has these."""
    divided: tuple[StageOps, StageOps] | None = None
    """The same where backward passes are divided; None: none is."""

    def of(self, is_last: bool, is_divided: bool) -> StageOps:
        """Return the ops of one micro-batch."""
        return (self.divided if is_divided and self.divided is not None else (self.each, self.last))[is_last]


@dataclass(frozen=True)
class Pass:
    """One stage runs one pass of one micro-batch."""

    kind: str
    number: int
    """Number of the micro-batch in the step: those of further accumulated batches follow."""
    batch: int
    """Number of the accumulated batch that it is a part of."""
    begin: int
    """Place of its first op; of a pass without ops, of the one that follows."""
    end: int
    """Place of the last op that has run when it has ended; ``START`` if there is none."""
    places: Mapping[int, int]
    """Place of an op of the stage -> its place in the step."""
    stage: int = 0
    is_divided: bool = False
    """True if the backward pass of the micro-batch is divided."""
    averaged: int = START
    """Place of the op behind the last pass of a stage that ends once its gradients are averaged; ``START``: none."""


@dataclass(frozen=True)
class Scheduled:
    """It is one step of a rank."""

    rank: RankGraph
    """All passes, then the update. Gradients are those of the last micro-batch; modules are there for each."""
    passes: tuple[Pass, ...]
    """Passes in the order in which they run."""
    of_stages: tuple[RankGraph, ...]
    """The same ops with the gradients, modules and buffers of one stage: one for each stage of the rank."""

    def turn(self, place: int) -> int:
        """Return where the first later pass of the other kind begins, or of the next batch; else the update."""
        own = self.passes[place]
        for one in self.passes[place + 1 :]:
            if one.kind != own.kind or one.batch != own.batch:
                return one.begin
        return self.update

    @property
    def update(self) -> int:
        """Return where the update begins, or the step ends."""
        return 1 + max(self.passes[-1].end, self.passes[-1].averaged)


def scheduled(parts: Mapping[int, StageParts], order: Sequence[Action], batches: int = 1) -> Scheduled:
    """Repeat the passes of the stages of a rank as its schedule orders them, ``batches`` times one after the other.

    Each further batch is loaded as the first one is. The first micro-batch writes gradients and later ones add to
    them, which takes as long. Where a rank has several stages, or divides backward passes, an op without time stands
    behind the last pass of each stage, for which the rank waits until gradients are averaged.

    Args:
        parts: stages of the rank, by number.
        order: its actions in one batch.
        batches: gradient accumulation steps.
    """
    made = _Made(parts, order, batches)
    made.run()
    return made.scheduled()


class _Made:
    """The ops of a step so far."""

    def __init__(self, parts: Mapping[int, StageParts], order: Sequence[Action], batches: int) -> None:
        self.parts, self.order, self.batches = parts, order, batches
        self.ops, self.passes = list[Op](), list[Pass]()
        self.each = len({one.micro_batch for one in order})
        self.divided = {(one.stage, one.micro_batch) for one in order if one.kind == INPUTS}
        self.is_looped = len(parts) > 1 or bool(self.divided)
        self.places: dict[int, list[dict[int, int]]] = {
            stage: [{} for _ in range(self.each * batches)] for stage in parts
        }

    def of(self, stage: int, number: int) -> StageOps:
        """Ops of a stage for a micro-batch of the step."""
        is_last = number == self.each * self.batches - 1
        return self.parts[stage].of(is_last, (stage, number % self.each) in self.divided)

    def run(self) -> None:
        """Add the passes of all batches."""
        start_s = next(iter(self.parts.values())).last.rank.start_s
        final = {one.stage: place for place, one in enumerate(self.order) if one.kind != FORWARD}
        for batch in range(self.batches):
            if batch and start_s and self.ops:
                self.ops.append(Op("next batch", "forward", start_s, stream=self.ops[-1].stream))
            for place, action in enumerate(self.order):
                is_final = batch == self.batches - 1 and final.get(action.stage) == place
                self._pass(action, batch, is_final and self.is_looped)

    def _pass(self, action: Action, batch: int, is_averaged: bool) -> None:
        begin, number = len(self.ops), batch * self.each + action.micro_batch
        places, source = self.places[action.stage][number], self.of(action.stage, number)
        own = source.passes[action.kind]
        places.update((place, begin + i) for i, place in enumerate(own))
        suffix = f", micro-batch {number}" if self.each * self.batches > 1 else ""
        for op in (moved_op(source.rank.ops[place], places) for place in own):
            self.ops.append(derived(op, name=op.name + suffix) if suffix else op)
        end, averaged = len(self.ops) - 1, START
        if is_averaged:
            averaged = len(self.ops)
            stream = self.ops[-1].stream if self.ops else "compute"
            self.ops.append(Op(f"stage {action.stage} averaged", "backward", 0.0, stream=stream))
        is_divided = (action.stage, action.micro_batch) in self.divided
        self.passes.append(Pass(action.kind, number, batch, begin, end, places, action.stage, is_divided, averaged))

    def scheduled(self) -> Scheduled:
        """Add the updates, and return the step."""
        for stage in self.parts:
            last, own = self.places[stage][-1], self.of(stage, self.each * self.batches - 1)
            updates = own.passes["update"]
            last.update((place, len(self.ops) + i) for i, place in enumerate(updates))
            self.ops += [moved_op(own.rank.ops[place], last) for place in updates]
        first, ops = next(iter(self.parts.values())).last.rank, tuple(self.ops)
        views = tuple(self._view(stage, ops) for stage in self.parts)
        joined = derived(
            first,
            ops=ops,
            gradients=tuple(one for view in views for one in view.gradients),
            modules=tuple(one for view in views for one in view.modules),
            buffers=tuple(one for view in views for one in view.buffers),
        )
        return Scheduled(joined if len(views) > 1 else views[0], tuple(self.passes), views)

    def _view(self, stage: int, ops: tuple[Op, ...]) -> RankGraph:
        each, many = self.places[stage], self.each * self.batches
        rank, last = self.of(stage, many - 1).rank, each[-1]
        gradients = (
            derived(
                one,
                ready_after=last.get(one.ready_after, START),
                readers=tuple(last[place] for place in one.readers if place in last),
            )
            for one in rank.gradients
        )
        modules = (
            _module(one, places) for number, places in enumerate(each) for one in self.of(stage, number).rank.modules
        )
        return derived(rank, ops=ops, gradients=tuple(gradients), modules=tuple(modules))


def _module(one: ModuleSpan, places: Mapping[int, int]) -> ModuleSpan:
    forward, backward = ((places[first], places[last]) for first, last in (one.forward, one.backward))
    return derived(one, forward=forward, backward=(min(backward), max(backward)))
