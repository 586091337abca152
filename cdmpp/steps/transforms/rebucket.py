"""Rebucket: a traced data-parallel step whose gradients are exchanged in other buckets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cdmpp.errors import CdmppError
from cdmpp.steps.buckets import USED_ITEM_BYTES, buckets_of
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.replay import contention_free
from cdmpp.steps.step_graph import COPY, LAUNCH, Gradient, Op, RankGraph, StepGraph
from cdmpp.steps.transforms.edit import Edit, edited, moved_op
from cdmpp.steps.wire import Wire, wires


def rebucket(graph: StepGraph, bucket_bytes: int | Sequence[int]) -> StepGraph:
    """Fill buckets as PyTorch's DistributedDataParallel does, launched and waited for anew.

    Args:
        graph: a traced step of DistributedDataParallel.
        bucket_bytes: bytes that close a bucket; of several numbers the last holds for all that follow.

    Raises:
        CdmppError: no whole bytes, or a step whose all-reduces in the backward pass are not its gradients.
    """
    limits = (bucket_bytes,) if isinstance(bucket_bytes, int) else tuple(bucket_bytes)
    if min(limits, default=0) < 1:
        raise CdmppError(f"buckets of {bucket_bytes} bytes: expected 1 or more")
    graph, old = contention_free(graph), gradient_exchanges(graph)
    buckets = buckets_of(graph.ranks[0], limits, is_rebuilt=used_map(graph) is None)
    repacked = {rank.rank: _repacked(rank, graph, old, buckets) for rank in graph.ranks}
    kept = tuple(one for place, one in enumerate(graph.exchanges) if place not in old)
    moved = edited(replace(graph, exchanges=kept), lambda rank: repacked[rank.rank].edit)
    wire, lag_s = wires(graph)["all_reduce"], _median_lag_s(graph, old)
    new = []
    for number, bucket in enumerate(buckets):
        size = sum(one.bytes for one in bucket)
        after = {rank: one.launched[number] for rank, one in repacked.items()}
        before = {rank: one.waiting.get(number, ()) for rank, one in repacked.items()}
        new.append(Exchange("all_reduce", size, after, before, wire_s=_seconds(graph, old, wire, size), lag_s=lag_s))
    return replace(moved, exchanges=(*moved.exchanges, *new))


def gradient_exchanges(graph: StepGraph) -> tuple[int, ...]:
    """Return places of exchanges that carry gradients; ``CdmppError`` where the step is not data parallel."""
    used = used_map(graph)
    found = tuple(place for place in _backward_sums(graph) if place != used)
    carried = sum(graph.exchanges[place].bytes for place in found)
    wanted = {rank.gradient_bytes for rank in graph.ranks}
    if not found or wanted != {carried} or len({len(rank.gradients) for rank in graph.ranks}) > 1:
        if spare := _without_gradient(graph, [graph.exchanges[place].bytes for place in found]):
            raise CdmppError(
                f"{spare} parameters of this job have no gradient in the traced step (find_unused_parameters), and the "
                "trace does not tell their bytes: its buckets cannot be changed"
            )
        raise CdmppError(
            f"buckets can only be changed in a job of DistributedDataParallel: its all-reduces in the backward pass "
            f"carry {carried} bytes, its gradients have {', '.join(map(str, sorted(wanted)))}"
        )
    return found


def used_map(graph: StepGraph) -> int | None:
    """Return the place of the exchange of used parameters by ``find_unused_parameters=True``; None without."""
    found, rank = _backward_sums(graph), graph.ranks[0]
    size = USED_ITEM_BYTES * len(rank.gradients)
    carried = sum(graph.exchanges[place].bytes for place in found)
    maps = [place for place in found if graph.exchanges[place].bytes == size]
    return maps[-1] if maps and carried == rank.gradient_bytes + size else None


def _without_gradient(graph: StepGraph, sizes: Sequence[int]) -> int:
    """Parameters that a map of used ones counts beyond those that have gradients; 0 where there is no such map."""
    if not sizes or min(sizes) % USED_ITEM_BYTES or any(one.kind == "all_gather" for one in graph.exchanges):
        return 0
    spare = min(sizes) // USED_ITEM_BYTES - len(graph.ranks[0].gradients)
    return max(0, spare) if sum(sizes) - min(sizes) > graph.ranks[0].gradient_bytes else 0


def _backward_sums(graph: StepGraph) -> tuple[int, ...]:
    """Places of the all-reduces in the backward pass."""
    return tuple(
        place
        for place, one in enumerate(graph.exchanges)
        if one.kind == "all_reduce" and all(_in_backward(graph.ranks[r], after) for r, after in one.after.items())
    )


@dataclass(frozen=True)
class _Repacked:
    """One rank with the launches of new buckets."""

    edit: Edit
    launched: list[int]
    """Bucket -> new place of the op that launches it."""
    waiting: Mapping[int, tuple[int, ...]]
    """Bucket -> new places of the ops that wait for it."""


def _in_backward(rank: RankGraph, place: int) -> bool:
    return place != START and rank.ops[place].phase == "backward"


def _seconds(graph: StepGraph, old: Sequence[int], wire: Wire, size: int) -> float:
    """A bucket that was there before keeps its time."""
    same = [graph.exchanges[place].measured_s for place in old if graph.exchanges[place].bytes == size]
    return statistics.median(same) if same else wire.at(size)


def _median_lag_s(graph: StepGraph, old: Sequence[int]) -> dict[int, float]:
    return {
        rank.rank: statistics.median([graph.exchanges[place].lag_s.get(rank.rank, 0.0) for place in old])
        for rank in graph.ranks
    }


def _repacked(
    rank: RankGraph, graph: StepGraph, old: Sequence[int], buckets: Sequence[Sequence[Gradient]]
) -> _Repacked:
    calls = {graph.exchanges[place].after[rank.rank] for place in old}
    calls = {place for place in calls if rank.ops[place].kind == LAUNCH}
    call = _median_call([rank.ops[place] for place in sorted(calls)])
    ready = {one.name: one.ready_after for one in rank.gradients}
    full: dict[int, list[int]] = {}
    last = START
    for number, bucket in enumerate(buckets):  # one leaves when those before it have left
        last = max(last, *(ready[one.name] for one in bucket))
        full.setdefault(last, []).append(number)
    ops, after, before, launched = list[Op](), list[int](), list[int](), [START] * len(buckets)
    places = dict[int, int]()
    for place, op in enumerate(rank.ops):
        before.append(len(ops))
        if place not in calls:
            places[place] = len(ops)
            ops.append(moved_op(op, places))
        after.append(len(ops) - 1)
        for number in full.get(place, ()):
            if call is not None:
                ops.append(call)
            launched[number] = len(ops) - 1
    waits = _waits(rank, {p for number in old for p in graph.exchanges[number].before.get(rank.rank, ())}, buckets)
    return _Repacked(
        Edit(tuple(ops), after, before), launched, {number: (before[place],) for number, place in waits.items()}
    )


def _median_call(calls: Sequence[Op]) -> Op | None:
    if not calls:
        return None
    took_s = statistics.median(one.duration_s for one in calls)
    return replace(calls[0], duration_s=took_s, delay_s=statistics.median(one.delay_s for one in calls))


def _waits(rank: RankGraph, waited: set[int], buckets: Sequence[Sequence[Gradient]]) -> dict[int, int]:
    """Bucket -> old place of the op that waits for it: the first of its copies, or where the first bucket's op was."""
    if not waited:
        return {}
    first = min(waited)
    copies = [place for place, op in enumerate(rank.ops) if op.kind == COPY]
    if len(copies) != len(rank.gradients):
        return dict.fromkeys(range(len(buckets)), first)
    found, copied = {}, 0
    for number, bucket in enumerate(buckets):
        found[number] = copies[copied - 1] + 1 if copied else first
        copied += len(bucket)
    return found
