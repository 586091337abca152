"""MergeOps: ops that follow each other on a stream become one, where nothing happens in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from cdmpp.steps.derived import derived
from cdmpp.steps.step_graph import Op, RankGraph, StepGraph
from cdmpp.steps.transforms.edit import Edit, edited


def merge_ops(graph: StepGraph) -> StepGraph:
    """Merge ops of one phase and stream that wait for nothing but the one before, and whose ends nothing waits for.

    Every exchange, the step and the seconds of each phase stay as they are, with fewer tasks to simulate. Pauses
    between merged ops come before them, so that ops inside are later than they were. What ops read and write,
    gradients and modules are left out: memory and strategies are asked before. The graph stays as it is where ops take
    longer next to exchanges or ranks share a processor, which differs from op to op.
    """
    if graph.is_contention_free or graph.processor_share or graph.processors:
        return graph
    launching: list[set[int]] = [set() for _ in graph.ranks]
    waiting: list[set[int]] = [set() for _ in graph.ranks]
    for one in graph.exchanges:
        for rank, place in one.after.items():
            launching[rank].add(place)
        for places in (one.before, one.blocks):
            for rank, own in places.items():
                waiting[rank].update(own)
    bare = derived(graph, ranks=tuple(derived(rank, gradients=(), modules=()) for rank in graph.ranks))
    return edited(bare, lambda rank: _edit(rank, launching[rank.rank], waiting[rank.rank]))


def _edit(rank: RankGraph, launching: set[int], waiting: set[int]) -> Edit:
    ops, awaited = rank.ops, launching.union(*(op.waits for op in rank.ops))
    runs, latest = list[list[int]](), dict[str, list[int]]()
    for place, op in enumerate(ops):
        run = latest.get(op.stream)
        if run is None or ops[run[-1]].phase != op.phase or op.waits or place in waiting or run[-1] in awaited:
            runs.append(run := [])
            latest[op.stream] = run
        run.append(place)
    runs.sort(key=lambda run: run[-1])  # behind all that its first op waits for
    new = {place: number for number, run in enumerate(runs) for place in run}
    places = [new[place] for place in range(len(ops))]
    return Edit(tuple(_merged([ops[place] for place in run], new) for run in runs), places, places)


def _merged(ops: Sequence[Op], new: Mapping[int, int]) -> Op:
    first, last = ops[0], ops[-1]
    return Op(
        first.name if len(ops) == 1 else f"{first.name} to {last.name}",
        first.phase,
        sum(op.duration_s for op in ops),
        last.gap_s,
        first.kind if len({op.kind for op in ops}) == 1 else "",
        first.stream,
        tuple(new[other] for other in first.waits),
        all(op.is_recomputed for op in ops),
        first.delay_s + sum(before.gap_s + op.delay_s for before, op in pairwise(ops)),
        sum(op.spread_s for op in ops),
    )
