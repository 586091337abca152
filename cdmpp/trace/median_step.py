"""The median step of the traces of all ranks: clocks aligned, waiting split off, medians over steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cdmpp.errors import DataError
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import Gradient, Measured, Op, RankGraph, StepGraph
from cdmpp.trace import rank_trace
from cdmpp.trace.clock import shifts
from cdmpp.trace.link_sharing import begun_s, unshared_s
from cdmpp.trace.matching import MatchedCollective, common_steps, matched, orders, reference_step
from cdmpp.trace.op_kind import kind_of_op
from cdmpp.trace.rank_trace import RankTrace, StepTrace
from cdmpp.trace.usual_work import Column, UsualWork, usual_in_order, usual_work

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
    common = common_steps(traces)
    return step_of(common.steps, traces, event_s, common.usual)


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


def step_of(
    steps: Sequence[Mapping[int, StepTrace]],
    traces: Sequence[RankTrace],
    event_s: float = 0.0,
    usual: Mapping[int, UsualWork] | None = None,
) -> StepGraph:
    """Take medians of ``steps``, rank -> trace, over those that have an op or an exchange; errors as ``median_step``.

    Args:
        steps: rank -> its trace of the step.
        traces: of all ranks.
        event_s: seconds by which the profiler delays an event of the host; taken off again.
        usual: what the steps have in common, rank -> its work, where that is known.
    """
    ranks = [trace.rank for trace in traces]
    reference = reference_step(steps)
    usual = usual or {rank: usual_work([step[rank] for step in steps], reference) for rank in ranks}
    agreed = agreement(steps, traces)
    shift = agreed.shifts
    steps = [{rank: _shifted(trace, shift[rank]) for rank, trace in step.items()} for step in steps]
    usual = {rank: replace(one, steps=[step[rank] for step in steps]) for rank, one in usual.items()}
    exchanges = [matched(step, agreed.is_partial, agreed.is_apart) for step in steps]
    columns = usual_in_order([[(one.key, *one.spans) for one in step] for step in exchanges], reference)
    waits = {rank: _waits(rank, usual[rank], columns, exchanges) for rank in ranks}
    buffered: dict[int, set[int]] = {rank: set() for rank in ranks}
    workers = max(trace.workers for trace in traces)
    wires_s, spreads_s = _medians([_of_columns(unshared_s(step), columns, n) for n, step in enumerate(exchanges)])
    joined, begins_s = [], [begun_s(step) for step in exchanges]
    for number, column in enumerate(columns):
        there = [(step, exchanges[step][place]) for step, place in enumerate(column) if place is not None]
        step, one = next((pair for pair in there if pair[0] == reference), there[0])
        before, blocks = dict[int, tuple[int, ...]](), dict[int, tuple[int, ...]]()
        places = [(step, place) for step, place in enumerate(column) if place is not None]
        is_held = [exchanges[step][place].held_sender(begins_s[step][place]) for step, place in places]
        is_buffered = 2 * sum(is_held) < len(is_held)
        for rank in one.spans:
            is_blocking = is_buffered and one.peers is not None and rank == one.peers[0]
            if is_blocking:
                buffered[rank].add(number)
            if number in waits[rank]:
                (blocks if is_blocking else before)[rank] = (waits[rank][number],)
        joined.append(
            Exchange(
                one.kind,
                int(np.median([seen.bytes for _, seen in there])),
                {rank: usual[rank].until(step, span.after) for rank, span in one.spans.items()},
                before,
                wire_s=wires_s[number],
                lag_s=_lags(there, usual, workers),
                group=one.group,
                spread_s=spreads_s[number],
                blocks=blocks,
            )
        )
    found = tuple(
        _rank(rank, usual[rank], reference, _ready(rank, waits, buffered, columns, exchanges), event_s)
        for rank in ranks
    )
    lengths = tuple(float(np.mean([t.end_s - t.start_s for t in step.values()])) for step in steps)
    waits_s = {
        rank: float(np.median([sum(one.wait_s(rank) for one in step if rank in one.spans) for step in exchanges]))
        for rank in ranks
    }
    return StepGraph(found, tuple(joined), traces[0].backend, workers, measured=Measured(lengths, waits_s))


def _of_columns(values: Sequence[float], columns: Sequence[Sequence[int | None]], step: int) -> list[float]:
    """The values of the columns in a step; NaN where it lacks one."""
    places = (column[step] for column in columns)
    return [math.nan if place is None else values[place] for place in places]


def _ready(
    rank: int, waits: Mapping[int, Mapping[int, int]], buffered: Mapping[int, set[int]], columns: Sequence[Column],
    exchanges: Sequence[Sequence[MatchedCollective]],
) -> list[dict[int, float]]:  # fmt: skip
    """For each step: column of an op -> when the last exchange that it waits for had ended."""
    found: list[dict[int, float]] = [{} for _ in exchanges]
    for number, op in waits[rank].items():
        for step, place in enumerate(columns[number]):
            if place is not None and number not in buffered[rank]:
                end_s = exchanges[step][place].spans[rank].end_s
                found[step][op] = max(found[step].get(op, end_s), end_s)
    return found


def _shifted(step: StepTrace, by_s: float) -> StepTrace:
    if not by_s:
        return step
    ops = tuple(op._replace(start_s=op.start_s + by_s, end_s=op.end_s + by_s) for op in step.ops)
    exchanges = tuple(replace(one, start_s=one.start_s + by_s, end_s=one.end_s + by_s) for one in step.exchanges)
    return replace(step, start_s=step.start_s + by_s, end_s=step.end_s + by_s, ops=ops, exchanges=exchanges)


def _rank(
    rank: int, usual: UsualWork, reference: int, ready: Sequence[Mapping[int, float]], event_s: float
) -> RankGraph:
    """Medians over steps; ``ready``: of each, column of an op -> when the exchanges that it waits for had ended."""
    busy_s, delays_s, wholes_s, columns = list[list[float]](), list[list[float]](), list[float](), usual.columns
    for number, step in enumerate(usual.steps):
        cost_s = event_s * step.events / max(sum(op.events for op in step.ops), 1)
        own_s = [op.end_s - op.start_s - cost_s * op.events for op in step.ops]
        busy_s.append(_of_columns(own_s, columns, number))
        ends_s = {
            len(step.ops) if column == len(columns) else columns[column][number]: end_s
            for column, end_s in ready[number].items()
        }
        *before_s, tail_s = _delays_s(step, ends_s)
        delays_s.append([*_of_columns(before_s, columns, number), tail_s])
        wholes_s.append(sum(max(one, 0.0) for one in (*own_s, *before_s, tail_s)))
    durations_s, spreads_s = _medians(busy_s)
    rests_s = np.maximum(np.array(wholes_s) - _filled(busy_s).sum(axis=1), 0.0)  # gaps make up for what steps lack
    gaps_s, _ = _medians(delays_s, rests_s)
    ops = []
    for column, places in enumerate(columns):
        number = reference if places[reference] is not None else next(n for n, p in enumerate(places) if p is not None)
        op, there = usual.steps[number].ops[places[number] or 0], usual.places[number]
        waits = sorted(there[place] for place in op.waits if there.get(place, column) < column)
        ops.append(
            Op(
                op.name, op.phase, durations_s[column], kind=kind_of_op(op.name, op.phase), stream=op.stream,
                waits=tuple(waits), delay_s=gaps_s[column], spread_s=spreads_s[column],
            )
        )  # fmt: skip
    gradients = [
        Gradient(f"gradient {number}", one.bytes, after, one.dtype)
        for number, one in enumerate(usual.steps[reference].gradients)
        if (after := usual.until(reference, one.after)) >= 0
    ]
    return RankGraph(rank, tuple(ops), tuple(reversed(gradients)), tail_s=gaps_s[-1])


def _delays_s(step: StepTrace, ready_s: Mapping[int | None, float]) -> list[float]:
    """Seconds before each op since all that it waited for, and after the last of all."""
    free_s, found = dict[str, float](), list[float]()
    for place, op in enumerate(step.ops):
        before_s = [step.ops[other].end_s for other in op.waits]
        free = max([free_s.get(op.stream, step.start_s), *before_s, ready_s.get(place, step.start_s)])
        found.append(op.start_s - free)
        free_s[op.stream] = max(op.end_s, free_s.get(op.stream, op.end_s))
    ended_s = max([step.start_s, *free_s.values(), ready_s.get(len(step.ops), step.start_s)])
    return [*found, step.end_s - ended_s]


def _filled(samples: Sequence[Sequence[float]]) -> np.ndarray:
    """The samples as a table, steps by columns; what a step lacks, NaN, is the median of those that have it."""
    table = np.maximum(np.asarray(samples, np.float64), 0.0)
    return np.where(np.isnan(table), np.nanmedian(table, axis=0), table) if table.size else table


def _medians(
    samples: Sequence[Sequence[float]], sums_s: Sequence[float] | None = None
) -> tuple[list[float], list[float]]:
    """Medians of the columns, with the sum that is the median of the rows' sums; half the distances of the quartiles.

    What disturbs a step comes at another place in the next: medians alone add up to less than any step.

    Args:
        samples: steps by columns.
        sums_s: of the rows, where they are not those of ``samples``.
    """
    table = _filled(samples)
    low, middle, high = np.percentile(table, (25, 50, 75), axis=0)
    whole_s, parts_s = float(np.median(table.sum(axis=1) if sums_s is None else sums_s)), float(middle.sum())
    scale = whole_s / parts_s if parts_s else 1.0
    return (scale * middle).tolist(), ((high - low) / 2).tolist()


def _waits(
    rank: int, usual: UsualWork, columns: Sequence[Column], exchanges: Sequence[Sequence[MatchedCollective]]
) -> dict[int, int]:
    """Number of an exchange of a rank -> column of the op that waits for it.

    Where the framework does not tell, an op waits for an exchange that ended in the gap before it, just before it
    started, in half of the steps that have it or more.
    """
    found: dict[int, int] = {}
    for number, column in enumerate(columns):
        votes, there = Counter[int](), 0
        for step, place in enumerate(column):
            one = None if place is None else exchanges[step][place].spans.get(rank)
            if one is None:
                continue
            there += 1
            at = one.waited_by if one.waited_by is not None else _resumed(one, usual.steps[step])
            if at is not None:
                votes[usual.since(step, at)] += 1
        if votes:
            at = max(votes, key=lambda key: (votes[key], -key))
            if 2 * votes[at] >= there:
                found[number] = at
    return found


def _resumed(one: rank_trace.Exchange, step: StepTrace) -> int | None:
    """The first op that begins after its end, if its stream stood still until then; the end of a device's step."""
    starts_s, ends_s, streams = step.columns
    later = np.flatnonzero((starts_s >= one.end_s) & (streams >= 0))
    later = later[later > one.after]
    if not len(later):
        is_last = step.host_s is not None and (ends_s <= one.end_s).all() and one.end_s <= step.end_s
        return len(ends_s) if is_last else None
    place = int(later[0] if step.host_s is None else later[np.argmin(starts_s[later])])
    hole_s = starts_s[place] - ends_s[:place][streams[:place] == streams[place]].max(initial=-np.inf)
    late_s = starts_s[place] - one.end_s
    return place if late_s < hole_s and late_s <= max(_RESUME_S, hole_s / 4) else None


def _lag(span: rank_trace.Exchange, trace: StepTrace, workers: int) -> float | None:
    """Seconds from the launch to the arrival; None where all workers were busy when it was launched."""
    launched_s = trace.ops[span.after].end_s if span.after >= 0 else trace.start_s
    busy = sum(one is not span and one.start_s <= launched_s < one.end_s for one in trace.exchanges)
    return max(span.start_s - launched_s, 0.0) if busy < workers else None


def _lags(
    there: Sequence[tuple[int, MatchedCollective]], usual: Mapping[int, UsualWork], workers: int
) -> dict[int, float]:
    """Rank -> the least seconds from launch to arrival."""
    found = {}
    for rank in there[0][1].spans:
        lags_s = [_lag(one.spans[rank], usual[rank].steps[step], workers) for step, one in there]
        found[rank] = min((lag_s for lag_s in lags_s if lag_s is not None), default=0.0)
    return found
