"""Steps of a rank whose operators run on the host: PyTorch on a CPU, with gloo."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdmpp.trace.event import Event
from cdmpp.trace.event_tree import Leaf, leaves
from cdmpp.trace.exchange_events import gloo_bytes, input_bytes, input_dtype, is_gloo, kind_of, peers_of
from cdmpp.trace.rank_trace import Exchange, GradientReady, Op, StepTrace
from cdmpp.trace.step_window import StepWindow

_COPY = "copy_bucket_to_grad"
_TIED = {"reduce_scatter": ("reduce_scatter", "all_reduce")}
"""gloo runs a reduce-scatter as an all-reduce."""


@dataclass
class _Launched:
    span: Event
    leaf: int | None
    """The leaf that launched it, among all of the trace."""


def host_steps(
    events: Sequence[Event], windows: Sequence[StepWindow], rank: int, ranks: int
) -> tuple[tuple[StepTrace, ...], int]:
    """Read the steps of ``windows``, and how many exchanges run at a time."""
    spans = sorted((event for event in events if is_gloo(event)), key=lambda e: e.ts)
    operators = Counter(event.tid for event in events if event.category == "cpu_op")
    main = next((event.tid for event in events if event.is_mark), None) or operators.most_common(1)[0][0]
    workers = {event.tid for event in spans} - {main}
    threads = {main} | {e.tid for e in events if e.name.startswith("autograd::engine")}
    host: dict[object, list[Event]] = {tid: [] for tid in threads - workers}
    for event in events:
        if event.tid in host and not event.is_mark and not is_gloo(event):
            host[event.tid].append(event)
    found = sorted((leaf for thread in host.values() for leaf in leaves(thread)), key=lambda leaf: leaf.start)
    clock = float("-inf")
    for leaf in found:  # of two threads at once the later waits, so that an op overlaps no other
        leaf.start, leaf.end = max(leaf.start, clock), max(leaf.end, clock)
        clock = leaf.end
    launched = _launches(found, spans)
    gathers = _fsdp_waits(events, found, launched)
    times = sorted(event.ts for thread in host.values() for event in thread)
    steps = []
    for window in windows:
        inside = bisect_left(times, window.end) - bisect_left(times, window.start)
        steps.append(_step(window, found, launched, gathers, rank, ranks, inside))
    return tuple(steps), max(len(workers), 1)


def _launches(found: list[Leaf], spans: list[Event]) -> list[_Launched]:
    """Each span with the call that handed it over, which ends where the worker takes over."""
    open_calls = [place for place, leaf in enumerate(found) if leaf.launches]
    matched = []
    for span in spans:
        kind, size = kind_of(span.name), input_bytes(span)
        call = next((p for p in open_calls if _fits(found[p].event, kind, size, span.ts)), None)
        if call is not None:
            open_calls.remove(call)
            found[call].end = min(found[call].end, max(span.ts, found[call].start))
        matched.append(_Launched(span, call))
    return matched


def _fits(call: Event, kind: str, size: int, start: float) -> bool:
    called = kind_of(call.name)
    if call.ts > start or kind not in _TIED.get(called, (called,)):
        return False
    return called not in ("all_reduce", "broadcast") or not size or input_bytes(call) in (0, size)


def _fsdp_waits(events: Sequence[Event], found: list[Leaf], launched: list[_Launched]) -> dict[int, float]:
    """Launching leaf -> when its rank needs what it gathers: to copy it out, or at once where the call stands still."""
    by_leaf = {one.leaf: one.span.ts + one.span.dur for one in launched}
    starts = [leaf.start for leaf in found]
    waits: dict[int, float] = {}
    latest: dict[str, list[int]] = {}
    for event in sorted(events, key=lambda e: e.ts):
        name, _, unit = event.name.partition(" ")
        if name == "FSDP::all_gather":
            inside = range(bisect_left(starts, event.ts), bisect_left(starts, event.ts + event.dur))
            latest[unit] = []
            for place in inside:
                if place in by_leaf and by_leaf[place] <= event.ts + event.dur:
                    waits[place] = by_leaf[place]
                elif place in by_leaf:
                    latest[unit].append(place)
        elif name == "FSDP::all_gather_copy_out":
            for place in latest.pop(unit, ()):
                waits[place] = event.ts
    return waits


def _step(
    window: StepWindow, found: list[Leaf], launched: list[_Launched], gathers: dict[int, float],
    rank: int, ranks: int, events: int,
) -> StepTrace:  # fmt: skip
    starts = [leaf.start for leaf in found]
    first, last = bisect_left(starts, window.start), bisect_left(starts, window.end)
    mine = found[first:last]
    backward = [place for place, leaf in enumerate(mine) if leaf.phase == "backward"]
    ops: list[Op] = []
    gradients = []
    for place, leaf in enumerate(mine):
        phase = leaf.phase or ("forward" if backward and place < backward[-1] else "update" if backward else "forward")
        ops.append(Op(leaf.event.name, phase, 1e-6 * leaf.start, 1e-6 * leaf.end, leaf.events))
        if leaf.gradient is not None:
            gradients.append(GradientReady(input_bytes(leaf.gradient), place, input_dtype(leaf.gradient)))
    exchanges = []
    for one in launched:
        span, kind = one.span, kind_of(one.span.name)
        start, end, waited, call = span.ts, span.ts + span.dur, None, None
        after = (one.leaf if one.leaf is not None else bisect_right(starts, span.ts) - 1) - first
        if not -1 <= after < len(mine) or (after == -1 and start < window.start):
            continue
        if one.leaf is not None:
            call = found[one.leaf].event
            if kind == "send_recv":  # its span is opened when the message may be gone already
                start, after = call.ts, after - 1
            if one.leaf in gathers:
                waited = bisect_left(starts, gathers[one.leaf]) - first
            elif not found[one.leaf].hook and end <= call.ts + call.dur:  # the call itself stood still for it
                waited = one.leaf - first + 1
        exchanges.append(
            Exchange(kind, gloo_bytes(span, kind, ranks), 1e-6 * start, 1e-6 * end, after, peers_of(call, rank),
                     waited if waited is not None and waited < len(mine) else None)
        )  # fmt: skip
    exchanges.sort(key=lambda one: (one.after, one.start_s))
    exchanges = _bucket_waits(exchanges, mine, ops)
    begin, end = 1e-6 * window.start, 1e-6 * window.end
    return StepTrace(window.number, begin, end, tuple(ops), tuple(exchanges), tuple(gradients), events)


def _bucket_waits(exchanges: list[Exchange], mine: Sequence[Leaf], ops: Sequence[Op]) -> list[Exchange]:
    """DistributedDataParallel waits for a bucket before it copies it back, or for all before the update."""
    buckets = [n for n, e in enumerate(exchanges) if e.kind == "all_reduce" and e.after >= 0 and mine[e.after].hook]
    if not buckets:
        return exchanges
    copies = [place for place, leaf in enumerate(mine) if leaf.event.name.endswith(_COPY)]
    free = max((place for place, op in enumerate(ops) if op.phase == "backward"), default=-1) + 1
    waits = dict.fromkeys(buckets, free) if not copies and free < len(ops) else {}
    bucket, seen = 0, 0
    for place in copies:
        if bucket == len(buckets):
            break
        waits.setdefault(buckets[bucket], free)
        seen += input_bytes(mine[place].event)
        if seen >= exchanges[buckets[bucket]].bytes:
            bucket, seen, free = bucket + 1, 0, place + 1
    return [replace(e, waited_by=waits.get(n, e.waited_by)) for n, e in enumerate(exchanges)]
