"""Scheduled: what one stage of a pipeline runs in a step, micro-batch after micro-batch in the order of a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cdmpp.network.training_step import PHASES
from cdmpp.steps.exchange import START
from cdmpp.steps.schedule import FORWARD, Action
from cdmpp.steps.step_graph import ModuleSpan, Op, RankGraph
from cdmpp.steps.transforms.edit import moved_op


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


@dataclass(frozen=True)
class Scheduled:
    """It is one step of a stage."""

    rank: RankGraph
    """All passes, then the update. Gradients are those of the last micro-batch; modules are there for each."""
    passes: tuple[Pass, ...]
    """Passes in the order in which they run."""

    def turn(self, place: int) -> int:
        """Return where the first later pass of the other kind begins, or of the next batch; else the update."""
        own = self.passes[place]
        for one in self.passes[place + 1 :]:
            if one.kind != own.kind or one.batch != own.batch:
                return one.begin
        return 1 + self.passes[-1].end


def scheduled(
    stage: RankGraph, order: Sequence[Action], batches: int = 1, earlier: RankGraph | None = None
) -> Scheduled:
    """Repeat the passes of a stage as its schedule orders them, ``batches`` times one after the other.

    Each further batch is loaded as the first one is. The first micro-batch writes gradients and later ones add to
    them, which takes as long.

    Args:
        stage: ops of the last micro-batch, and the update.
        order: its actions in one batch.
        batches: gradient accumulation steps.
        earlier: ops of the micro-batches before; None: those of ``stage``.
    """
    before = earlier or stage
    own_places, places_before = _by_phase(stage), _by_phase(before)
    each, ops, passes = sum(one.kind == FORWARD for one in order), list[Op](), list[Pass]()
    micro_batches: list[dict[int, int]] = [{} for _ in range(each * batches)]
    for batch in range(batches):
        if batch and stage.start_s and ops:
            ops.append(Op("next batch", "forward", stage.start_s, stream=ops[-1].stream))
        for action in order:
            begin, number = len(ops), batch * each + action.micro_batch
            places, is_last = micro_batches[number], number == len(micro_batches) - 1
            source, own = (stage, own_places) if is_last else (before, places_before)
            places.update((place, begin + i) for i, place in enumerate(own[action.kind]))
            for op in (moved_op(source.ops[place], places) for place in own[action.kind]):
                ops.append(replace(op, name=f"{op.name}, micro-batch {number}") if len(micro_batches) > 1 else op)
            passes.append(Pass(action.kind, number, batch, begin, len(ops) - 1, places))
    last = micro_batches[-1]
    last.update((place, len(ops) + i) for i, place in enumerate(own_places["update"]))
    ops += [moved_op(stage.ops[place], last) for place in own_places["update"]]
    gradients = (
        replace(
            one,
            ready_after=last.get(one.ready_after, START),
            readers=tuple(last[place] for place in one.readers if place in last),
        )
        for one in stage.gradients
    )
    modules = (
        _module(one, places)
        for number, places in enumerate(micro_batches, 1)
        for one in (stage if number == len(micro_batches) else before).modules
    )
    return Scheduled(replace(stage, ops=tuple(ops), gradients=tuple(gradients), modules=tuple(modules)), tuple(passes))


def _by_phase(stage: RankGraph) -> dict[str, list[int]]:
    return {phase: [i for i, op in enumerate(stage.ops) if op.phase == phase] for phase in PHASES}


def _module(one: ModuleSpan, places: Mapping[int, int]) -> ModuleSpan:
    forward, backward = ((places[first], places[last]) for first, last in (one.forward, one.backward))
    return replace(one, forward=forward, backward=backward)
