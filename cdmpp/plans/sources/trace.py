"""A trace as a source: a job of data-parallel ranks that was measured once, under other plans."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cdmpp.errors import CdmppError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.source import SPLITS, RankWork, StepSource, check_whole
from cdmpp.platform.limits import SIZES
from cdmpp.steps.exchange import START
from cdmpp.steps.replay import contention_free
from cdmpp.steps.step_graph import COPY, LAUNCH, Op, RankGraph, StepGraph
from cdmpp.steps.strategy import Strategy
from cdmpp.steps.transforms.edit import Edit, edited, moved_op

_EXCHANGED = (LAUNCH, COPY)
_MOST_APART = 1.5
"""Ranks are alike if the slowest computes at most so many times as long as the median one."""


class TraceSource(StepSource):
    """The ops of one rank, as they are next to no exchange: those that launch exchanges or unpack buckets are left out.

    An op takes the median of what it took on all ranks. Other numbers of examples than the traced one take time in
    proportion, with a warning; the interval then goes from proportional to unchanged. A trace does not tell what ops
    write, so that memory is unknown and nothing can be cut into stages.
    """

    of = "traced ops"

    def __init__(self, graph: StepGraph, batch: int) -> None:
        """Take a traced step.

        Args:
            graph: of one rank, or of several that are alike, as ``cdmpp.trace`` reads it.
            batch: examples of one rank in the traced step.

        Raises:
            CdmppError: ranks that run other ops or compute for other times, or that divide a model among them.
        """
        SIZES.fitting("the batch of a traced rank", batch)
        _check_whole(graph)
        free = edited(replace(contention_free(graph), exchanges=()), lambda rank: _without_exchanges(rank, graph))
        first, *others = free.ranks
        for other in others:
            if [(op.name, op.phase) for op in other.ops] != [(op.name, op.phase) for op in first.ops]:
                raise CdmppError(f"rank {other.rank} of the trace runs other ops than rank 0: a plan needs ranks alike")
        busy = sorted(rank.busy_s for rank in free.ranks)
        middle = statistics.median(busy)
        if busy[-1] > _MOST_APART * middle:
            slow = max(free.ranks, key=lambda rank: rank.busy_s).rank
            raise CdmppError(
                f"rank {slow} of the trace computes {busy[-1] / middle:.1f} times as long as the median rank: a plan "
                "needs ranks that are alike; leave it out, or replay the trace with --what-if straggler=no"
            )
        self.batch = batch
        self._rank = replace(first, ops=tuple(map(_median, zip(*(rank.ops for rank in free.ranks), strict=True))))
        self._ends = (busy[0] / middle, busy[-1] / middle) if middle else (1.0, 1.0)

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:  # noqa: ARG002
        """Return the ops of one rank; ``CdmppError``: operators that are divided, or stages."""
        SIZES.fitting("the batch of a rank", batch)
        if degrees.pp > 1:
            raise CdmppError(
                f"a trace does not tell where its model can be cut into {degrees.pp} stages, nor what they would send: "
                "name its blocks, and take the table that sources.traced_layers makes of them and the trace"
            )
        check_whole(degrees, "a trace")
        times, (low, high) = batch / self.batch, self._ends
        if times == 1:
            return RankWork(self._rank, low=low, high=high)
        ops = tuple(_scaled(op, times) for op in self._rank.ops)
        warning = f"traced with {self.batch} examples a rank: the time of {batch} is in proportion"
        low, high = low / max(times, 1.0), high * max(1 / times, 1.0)
        return RankWork(replace(self._rank, ops=ops), low=low, high=high, warnings=(warning,))

    def limits(self) -> Mapping[str, int]:
        """Return 1 for stages and for operators that are divided: a trace tells nothing of these."""
        return {"pp": 1, **dict.fromkeys(SPLITS, 1)}


def _check_whole(graph: StepGraph) -> None:
    """``CdmppError`` where each rank had only a part of the model: exchanges carry activations."""
    for one in graph.exchanges:
        in_forward = any(
            place != START and graph.ranks[rank].ops[place].phase == "forward" for rank, place in one.after.items()
        )
        if one.kind in ("send_recv", "all_to_all") or (one.kind == "all_reduce" and in_forward):
            raise CdmppError(
                f"{one.title} of the trace carries activations between ranks: a plan needs the trace of a job whose "
                "ranks have the whole model"
            )


def _without_exchanges(rank: RankGraph, graph: StepGraph) -> Edit:
    held_up = {place for one in graph.exchanges for place in one.blocks.get(rank.rank, ())}
    ops, after, before, places = list[Op](), list[int](), list[int](), dict[int, int]()
    for place, op in enumerate(rank.ops):
        before.append(len(ops))
        if op.kind not in _EXCHANGED:
            places[place] = len(ops)
            ops.append(replace(moved_op(op, places), delay_s=0.0 if place in held_up else op.delay_s))
        after.append(max(0, len(ops) - 1))
    return Edit(tuple(ops), after, before)


def _median(ops: tuple[Op, ...]) -> Op:
    values = {
        name: statistics.median(getattr(op, name) for op in ops)
        for name in ("duration_s", "delay_s", "gap_s", "spread_s")
    }
    return replace(ops[0], **values)


def _scaled(op: Op, times: float) -> Op:
    """An op with so many times the examples; updates, and pauses of the host, do not depend on them."""
    if op.phase == "update":
        return op
    return replace(op, duration_s=times * op.duration_s, spread_s=times * op.spread_s)
