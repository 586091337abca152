"""The median step of the traces of all ranks: clocks aligned, waiting split off, medians over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cdmpp.errors import DataError
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import Gradient, Measured, Op, RankGraph, StepGraph
from cdmpp.trace import rank_trace
from cdmpp.trace.clock import shifts
from cdmpp.trace.link_sharing import unshared_s
from cdmpp.trace.matching import MatchedCollective, common_steps, matched, orders
from cdmpp.trace.op_kind import kind_of_op
from cdmpp.trace.rank_trace import RankTrace, StepTrace

_RESUME_S = 5e-4
"""An op that starts later than this after an exchange has ended, did not wait for it."""


def median_step(traces: Sequence[RankTrace], event_s: float = 0.0) -> StepGraph:
    """Make the step graph that ``traces``, one a rank, show.

    Args:
        traces: of all ranks, from rank 0 up.
        event_s: seconds by which the profiler delays an event of the host; taken off again.

    Raises:
        DataError: no common step, exchanges that do not match, clocks that cannot be aligned.
    """
    return step_of(common_steps(traces)[0], traces, event_s)


@dataclass(frozen=True)
class Agreement:
    """The exchanges of all ranks fit together so."""

    shifts: Mapping[int, float]
    """Rank -> seconds to add to its clock."""
    is_partial: bool = False
    """True if ranks may exchange something with others that have no trace."""
    is_apart: bool = False
    """True if nothing that one rank exchanges is that of another."""
    doubt: str = ""


def agreement(steps: Sequence[Mapping[int, StepTrace]], traces: Sequence[RankTrace]) -> Agreement:
    """Find the shifts of the clocks by exchanges that match on all ranks.

    Where they do not, ranks of devices are taken each for itself, and those without a trace are taken to be their
    partners.

    Raises:
        DataError: operators of hosts whose exchanges do not match, or whose clocks cannot be aligned.
    """
    ranks, doubt = [trace.rank for trace in traces], ""
    is_partial = any(trace.is_partial for trace in traces)
    is_strict = not is_partial and any(one.host_s is None for step in steps for one in step.values())
    for partial in (is_partial,) if is_strict or is_partial else (False, True):
        try:
            return Agreement(shifts(ranks, orders([matched(step, partial) for step in steps])), partial, doubt=doubt)
        except DataError as error:
            if is_strict:
                raise
            doubt = f"exchanges of the ranks do not match, each waits for those that it matches with: {error}"
    doubt = f"exchanges of the ranks do not match, each rank is replayed by itself: {doubt.partition(': ')[2]}"
    return Agreement(dict.fromkeys(ranks, 0.0), is_partial=True, is_apart=True, doubt=doubt)


def step_of(steps: Sequence[Mapping[int, StepTrace]], traces: Sequence[RankTrace], event_s: float = 0.0) -> StepGraph:
    """Take medians of ``steps``, rank -> trace, in all of which each rank did the same; errors as ``median_step``."""
    ranks = [trace.rank for trace in traces]
    agreed = agreement(steps, traces)
    shift = agreed.shifts
    steps = [{rank: _shifted(trace, shift[rank]) for rank, trace in step.items()} for step in steps]
    exchanges = [matched(step, agreed.is_partial, agreed.is_apart) for step in steps]
    if len({tuple((one.kind, one.bytes, one.group) for one in step) for step in exchanges}) > 1:
        exchanges = [_in_order_of(exchanges[0], step) for step in exchanges]
    mine = {rank: [step[rank] for step in steps] for rank in ranks}
    waits = {rank: _waits(mine[rank]) for rank in ranks}
    buffered: dict[int, set[int]] = {rank: set() for rank in ranks}
    workers = max(trace.workers for trace in traces)
    wires_s, spreads_s = _medians([unshared_s(step) for step in exchanges])
    joined = []
    for place, one in enumerate(exchanges[0]):
        before, blocks = dict[int, tuple[int, ...]](), dict[int, tuple[int, ...]]()
        is_buffered = 2 * sum(step[place].sender_blocked for step in exchanges) < len(steps)
        for rank, span in one.spans.items():
            number = next(i for i, own in enumerate(mine[rank][0].exchanges) if own is span)
            is_blocking = is_buffered and one.peers is not None and rank == one.peers[0]
            if is_blocking:
                buffered[rank].add(number)
            if number in waits[rank]:
                (blocks if is_blocking else before)[rank] = (waits[rank][number],)
        joined.append(
            Exchange(
                one.kind,
                one.bytes,
                {rank: span.after for rank, span in one.spans.items()},
                before,
                wire_s=wires_s[place],
                lag_s=_lags(place, exchanges, mine, workers),
                group=one.group,
                spread_s=spreads_s[place],
                blocks=blocks,
            )
        )
    found = tuple(
        _rank(rank, mine[rank], {n: at for n, at in waits[rank].items() if n not in buffered[rank]}, event_s)
        for rank in ranks
    )
    lengths = tuple(float(np.mean([t.end_s - t.start_s for t in step.values()])) for step in steps)
    waits_s = {
        rank: float(np.median([sum(one.wait_s(rank) for one in step if rank in one.spans) for step in exchanges]))
        for rank in ranks
    }
    return StepGraph(found, tuple(joined), traces[0].backend, workers, measured=Measured(lengths, waits_s))


def _shifted(step: StepTrace, by_s: float) -> StepTrace:
    ops = tuple(op._replace(start_s=op.start_s + by_s, end_s=op.end_s + by_s) for op in step.ops)
    exchanges = tuple(replace(one, start_s=one.start_s + by_s, end_s=one.end_s + by_s) for one in step.exchanges)
    return replace(step, start_s=step.start_s + by_s, end_s=step.end_s + by_s, ops=ops, exchanges=exchanges)


def _in_order_of(
    first: Sequence[MatchedCollective], step: Sequence[MatchedCollective]
) -> tuple[MatchedCollective, ...]:
    """Two that are launched at once may have changed places."""
    rest, ordered = list(step), []
    for one in first:
        same = next((o for o in rest if (o.kind, o.bytes, o.group) == (one.kind, one.bytes, one.group)), None)
        if same is None:
            raise DataError(f"an exchange of {one.bytes} bytes ({one.kind}) is not in every traced step")
        rest.remove(same)
        ordered.append(same)
    return tuple(ordered)


def _rank(rank: int, steps: Sequence[StepTrace], waits: Mapping[int, int], event_s: float) -> RankGraph:
    """Medians of ``steps``; ``waits``: number of an exchange in a step -> place of the op that waits for it."""
    inside = [sum(op.events for op in step.ops) for step in steps]
    each_s = [event_s * step.events / max(count, 1) for step, count in zip(steps, inside, strict=True)]
    busy_s = [
        [op.end_s - op.start_s - cost_s * op.events for op in step.ops]
        for step, cost_s in zip(steps, each_s, strict=True)
    ]
    durations_s, spreads_s = _medians(busy_s)
    delays_s, _ = _medians([_delays_s(step, waits) for step in steps])
    ops = tuple(
        Op(
            op.name, op.phase, durations_s[place], kind=kind_of_op(op.name, op.phase), stream=op.stream,
            waits=op.waits, delay_s=delays_s[place], spread_s=spreads_s[place],
        )
        for place, op in enumerate(steps[0].ops)
    )  # fmt: skip
    ready = enumerate(steps[0].gradients)
    gradients = [Gradient(f"gradient {number}", one.bytes, one.after, one.dtype) for number, one in ready]
    return RankGraph(rank, ops, tuple(reversed(gradients)), tail_s=delays_s[-1])


def _delays_s(step: StepTrace, waits: Mapping[int, int]) -> list[float]:
    """Seconds before each op since all that it waited for, and after the last of all."""
    ready_s: dict[int, float] = {}
    for number, place in waits.items():
        ready_s[place] = max(ready_s.get(place, step.start_s), step.exchanges[number].end_s)
    free_s, found = dict[str, float](), list[float]()
    for place, op in enumerate(step.ops):
        before_s = [step.ops[other].end_s for other in op.waits]
        free = max([free_s.get(op.stream, step.start_s), *before_s, ready_s.get(place, step.start_s)])
        found.append(op.start_s - free)
        free_s[op.stream] = max(op.end_s, free_s.get(op.stream, op.end_s))
    ended_s = max([step.start_s, *free_s.values(), ready_s.get(len(step.ops), step.start_s)])
    return [*found, step.end_s - ended_s]


def _medians(samples: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Medians of the columns, with the sum that is the median of the rows' sums; half the distances of the quartiles.

    What disturbs a step comes at another place in the next: medians alone add up to less than any step.
    """
    table = np.maximum(np.asarray(samples, np.float64), 0.0)
    low, middle, high = np.percentile(table, (25, 50, 75), axis=0)
    whole_s, parts_s = float(np.median(table.sum(axis=1))), float(middle.sum())
    scale = whole_s / parts_s if parts_s else 1.0
    return (scale * middle).tolist(), ((high - low) / 2).tolist()


def _waits(steps: Sequence[StepTrace]) -> dict[int, int]:
    """Number of an exchange in a step -> place of the op that waits for it.

    Where the framework does not tell, an op waits for an exchange that ended in the gap before it, just before it
    started, in half of the steps or more.
    """
    found: dict[int, int] = {}
    for number, _ in enumerate(steps[0].exchanges):
        votes: dict[int, int] = {}
        for step in steps:
            one = step.exchanges[number]
            place = one.waited_by if one.waited_by is not None else _resumed(one, step)
            if place is not None:
                votes[place] = votes.get(place, 0) + 1
        if votes:
            place = max(votes, key=lambda key: (votes[key], -key))
            if 2 * votes[place] >= len(steps):
                found[number] = place
    return found


def _resumed(one: rank_trace.Exchange, step: StepTrace) -> int | None:
    """The first op that begins after its end, if its stream stood still until then; the end of a device's step."""
    ops, later = step.ops, None
    for place in range(one.after + 1, len(ops)):
        op = ops[place]
        is_work = op.stream != rank_trace.HOST and op.start_s >= one.end_s
        if is_work and (later is None or op.start_s < ops[later].start_s):
            later = place
            if step.host_s is None:
                break
    if later is None:
        is_last = step.host_s is not None and all(op.end_s <= one.end_s for op in ops) and one.end_s <= step.end_s
        return len(ops) if is_last else None
    before_s = [op.end_s for op in ops[:later] if op.stream == ops[later].stream]
    hole_s = ops[later].start_s - max(before_s, default=float("-inf"))
    late_s = ops[later].start_s - one.end_s
    return later if late_s < hole_s and late_s <= max(_RESUME_S, hole_s / 4) else None


def _lag(span: rank_trace.Exchange, trace: StepTrace, workers: int) -> float | None:
    """Seconds from the launch to the arrival; None where all workers were busy when it was launched."""
    launched_s = trace.ops[span.after].end_s if span.after >= 0 else trace.start_s
    busy = sum(one is not span and one.start_s <= launched_s < one.end_s for one in trace.exchanges)
    return max(span.start_s - launched_s, 0.0) if busy < workers else None


def _lags(
    place: int, steps: Sequence[Sequence[MatchedCollective]], traces: Mapping[int, Sequence[StepTrace]], workers: int
) -> dict[int, float]:
    """Rank -> the least seconds from launch to arrival."""
    found = {}
    for rank in steps[0][place].spans:
        pairs = zip(steps, traces[rank], strict=True)
        lags_s = [_lag(step[place].spans[rank], trace, workers) for step, trace in pairs]
        found[rank] = min((lag_s for lag_s in lags_s if lag_s is not None), default=0.0)
    return found
