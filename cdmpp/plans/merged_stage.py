"""MergedStage: the ops of one micro-batch of a stage with those merged between which nothing happens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cdmpp.network.training_step import PHASES
from cdmpp.plans.sources.source import OpExchange
from cdmpp.steps.derived import derived
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.schedule import BACKWARD, INPUTS, WEIGHTS
from cdmpp.steps.step_graph import RankGraph, StepGraph
from cdmpp.steps.transforms.merge_ops import merge_ops


@dataclass(frozen=True)
class StageOps:
    """A rank runs these ops for one micro-batch."""

    rank: RankGraph
    operators: tuple[OpExchange, ...]
    """Exchanges of its divided operators, next to its ops; those that come from before its first op are after none."""
    first_weights: int | None = None
    """Place of the first op of the backward pass that gradients of inputs do not need, and behind which there are only
    such ops; None where the pass is not divided."""

    @cached_property
    def passes(self) -> Mapping[str, tuple[int, ...]]:
        """Kind of action -> places of its ops; next to them those of the update."""
        found = {phase: tuple(i for i, op in enumerate(self.rank.ops) if op.phase == phase) for phase in PHASES}
        if (first := self.first_weights) is not None:
            found[INPUTS] = tuple(place for place in found[BACKWARD] if place < first)
            found[WEIGHTS] = tuple(place for place in found[BACKWARD] if place >= first)
        return found


def merged_stage(given: StageOps, with_gradients: bool) -> StageOps:
    """Merge ops as ``merge_ops`` does, but for those after which a gradient is ready, or at which a module begins.

    Args:
        given: ops of one micro-batch.
        with_gradients: False for a micro-batch after which no gradient is exchanged.
    """
    rank = given.rank
    ready = [one.ready_after for one in rank.gradients] if with_gradients else []
    spans = [span for one in rank.modules for span in (one.forward, one.backward)]
    marks = [
        *(_mark(one.after, one.before) for one in given.operators),
        *(_mark(place) for place in ready),
        *(_mark(last, (first,)) for first, last in spans),
        *(_mark(place - 1, (place,)) for place in (given.first_weights,) if place is not None),
    ]
    made = merge_ops(StepGraph((derived(rank, rank=0),), tuple(marks)))
    moved = [(one.after[0], one.before.get(0, ())) for one in made.exchanges]
    first, second = len(given.operators), len(given.operators) + len(ready)
    operators = (
        derived(one, after=after, before=before)
        for one, (after, before) in zip(given.operators, moved[:first], strict=True)
    )
    gradients = (
        derived(one, ready_after=after, readers=())
        for one, (after, _) in zip(rank.gradients if with_gradients else (), moved[first:second], strict=True)
    )
    places = [(before[0], after) for after, before in moved[second : second + len(spans)]]
    modules = (
        derived(one, forward=forward, backward=backward)
        for one, forward, backward in zip(rank.modules, places[::2], places[1::2], strict=True)
    )
    own = derived(made.ranks[0], rank=rank.rank, gradients=tuple(gradients), modules=tuple(modules))
    divided = [before[0] for _, before in moved[second + len(spans) :]]
    return StageOps(own, tuple(operators), *divided)


def operators_of(exchanges: Iterable[OpExchange], places: Sequence[int]) -> tuple[OpExchange, ...]:
    """Return the exchanges for which ops of a stage wait, at the places that these have in it.

    Exchanges before the update are of the stage that makes their gradient, since the update is on all.

    Args:
        exchanges: at places of the whole rank.
        places: place of each op of the stage in the whole rank.
    """
    new = {old: place for place, old in enumerate(places)}
    return tuple(
        derived(one, after=new.get(one.after, START), before=waiting)
        for one in exchanges
        if (waiting := tuple(new[place] for place in one.before if place in new))
        and (not one.is_of_update or one.after in new)
    )


def _mark(after: int, before: tuple[int, ...] = ()) -> Exchange:
    return Exchange("mark", 0, {0: after}, {0: before})
