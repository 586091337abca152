"""Accumulate: gradients of several batches are added up before they are exchanged."""

from __future__ import annotations

from cdmpp.steps.derived import derived
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import COPY, LAUNCH, Op, RankGraph, StepGraph
from cdmpp.steps.transforms.edit import Edit, edited, moved_op


def accumulate(graph: StepGraph, batches: int) -> StepGraph:
    """Run forward and backward pass of ``batches`` batches, then the update.

    Gradients and exchanges are those of the last batch: earlier ones exchange nothing, launch nothing and copy no
    buckets. Modules are there for each batch.
    """
    return graph if batches == 1 else edited(graph, lambda rank: _edit(rank, batches))


def accumulated_places(rank: RankGraph, batches: int) -> list[int]:
    """Return the place among those of one batch that each op of ``batches`` has, where nothing is loaded in between."""
    return [*_passes(rank) * (batches - 1), *range(len(rank.ops))]


def _passes(rank: RankGraph) -> list[int]:
    """Places of the ops that run for each batch."""
    return [place for place, op in enumerate(rank.ops) if op.phase != "update" and op.kind not in (LAUNCH, COPY)]


def _edit(rank: RankGraph, batches: int) -> Edit:
    passes = _passes(rank)
    ops, earlier = list[Op](), list[ModuleSpan]()
    for _ in range(batches - 1 if passes else 0):
        places = {place: len(ops) + number for number, place in enumerate(passes)}
        ops += [moved_op(rank.ops[place], places) for place in passes]
        for one in rank.modules:
            if {*one.forward, *one.backward} <= places.keys():
                forward, backward = ((places[first], places[last]) for first, last in (one.forward, one.backward))
                earlier.append(derived(one, forward=forward, backward=backward))
        if rank.start_s:
            ops.append(Op("next batch", "forward", rank.start_s, stream=ops[-1].stream))
    places = {place: len(ops) + place for place in range(len(rank.ops))}
    ops += [moved_op(op, places) for op in rank.ops]
    return Edit(tuple(ops), list(places.values()), list(places.values()), earlier=tuple(earlier))
