"""Fuse the update: one kernel updates all parameters, so that the host launches once."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.steps.step_graph import BOOKKEEPING, COPY, LAUNCH, Op, RankGraph, StepGraph
from cdmpp.steps.transforms.edit import Edit, edited, moved_op


def can_fuse_update(graph: StepGraph) -> bool:
    """Return True if every rank has several updates, on one stream, last and only with pauses between."""
    return not is_update_fused(graph) and all(_can_fuse(rank, _updates(graph, rank)) for rank in graph.ranks)


def is_update_fused(graph: StepGraph) -> bool:
    """Return True if a traced step calls a fused optimizer of PyTorch, such as ``_fused_adam_``."""
    return any("_fused_" in op.name for rank in graph.ranks for op in rank.ops if op.phase == "update")


def fuse_update(graph: StepGraph) -> StepGraph:
    """Let the last update take as long as all of them, after one delay; the others and their pauses are gone."""
    return edited(graph, lambda rank: _edit(rank, _updates(graph, rank)))


def _updates(graph: StepGraph, rank: RankGraph) -> list[int]:
    """Places of the updates that wait for no exchange. Other ops of a traced update stay as they are."""
    waits = graph.waits(rank.rank)
    return [
        place
        for place, op in enumerate(rank.ops)
        if op.phase == "update" and op.kind not in (LAUNCH, COPY, BOOKKEEPING) and place not in waits
    ]


def _can_fuse(rank: RankGraph, updates: list[int]) -> bool:
    if len(updates) < 2 or len({rank.ops[place].stream for place in updates}) > 1:
        return False
    rest = rank.ops[updates[0] :]
    return all(op.phase == "update" for op in rest) and any(
        rank.ops[a].gap_s or rank.ops[b].delay_s for a, b in zip(updates, updates[1:], strict=False)
    )


def _edit(rank: RankGraph, updates: list[int]) -> Edit:
    if not updates:
        kept = list(range(len(rank.ops)))
        return Edit(rank.ops, kept, kept)
    last, merged = updates[-1], [rank.ops[place] for place in updates]
    fused = replace(
        rank.ops[last],
        name="update of all",
        duration_s=sum(op.duration_s for op in merged),
        delay_s=merged[0].delay_s,
        waits=tuple(sorted({other for op in merged for other in op.waits if other not in updates})),
        inputs=tuple(sorted({other for op in merged for other in op.inputs if other not in updates})),
        output_bytes=sum(op.output_bytes for op in merged),
    )
    gone, ops = set(updates[:-1]), list[Op]()
    after, places = list[int](), dict[int, int]()
    for place, op in enumerate(rank.ops):
        if place not in gone:
            places[place] = len(ops)
            ops.append(moved_op(fused if place == last else op, places))
        after.append(len(ops) - 1)
    before = [after[place] + 1 if place in gone else after[place] for place in range(len(rank.ops))]
    return Edit(tuple(ops), after, before)
