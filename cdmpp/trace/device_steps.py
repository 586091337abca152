"""Steps of a rank whose operators run on a device: streams at once, the host that feeds them, what waits for what."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from cdmpp.trace.device_work import DeviceWork, Work
from cdmpp.trace.event import Event
from cdmpp.trace.exchange_events import Records, input_bytes, input_dtype
from cdmpp.trace.rank_trace import HOST, Exchange, GradientReady, Op, StepTrace
from cdmpp.trace.scanned import Scanned
from cdmpp.trace.step_window import StepWindow

_ROUNDED = 1.0
"""Microseconds by which older profilers round: so much overlap on a stream is none."""
_FOLLOWS = 50.0
"""Microseconds: work that begins so soon after the end of work on another stream, with its own stream idle, may have
waited for it."""
_LOOK_BACK = 64
"""Events of a stream among which those that something waits for are sought."""
_LAST = float("inf")
_NONE: frozenset[int] = frozenset()
_SYNCS = ("ynchronize", "emcpy")


@dataclass(frozen=True)
class _Frame:
    """The times of one step on each stream: streams that run ahead of others, or behind, are moved into its span."""

    start: float
    end: float
    shifts: Mapping[str, float]
    """Stream -> microseconds to add."""

    def span(self, work: Work) -> tuple[float, float]:
        """Return begin and end of some work in the step."""
        shift = self.shifts[work.stream]
        return work.event.ts + shift, work.event.end + shift


class _Item(NamedTuple):
    """An op or an exchange on its stream."""

    start: float
    end: float
    stream: str
    launched: float
    ready: float
    """When the host had launched it, as the step counts time."""
    place: int
    """Place among the ops; -1: an exchange."""


class _Row(NamedTuple):
    """An op in the making."""

    name: str
    phase: str
    start: float
    end: float
    stream: str
    after: frozenset[int] | set[int]


def device_steps(
    scanned: Scanned, windows: Sequence[StepWindow], work: DeviceWork, world: int
) -> tuple[StepTrace, ...]:
    """Return steps that are whole, and last as the host's marks say, or longer where the device does."""
    records = Records(scanned.host, world)
    phases = _Phases(scanned.host)
    waits = _stream_waits(scanned)
    syncs = [(one.ts, one.end) for one in scanned.launches if any(word in one.name.lower() for word in _SYNCS)]
    syncs.sort(key=lambda span: span[1])
    grads = [one for one in scanned.host if one.name == "torch::autograd::AccumulateGrad"]
    for used in (scanned.host, scanned.launches, scanned.device, work.left_over):
        used.clear()
    found = []
    for place, (window, lost) in enumerate(zip(windows, work.lost, strict=True)):
        works, work.steps[place] = work.steps[place], []
        if not lost:
            mine = [one for one in grads if window.start <= one.ts < window.end]
            found.append(_step(window, works, records, phases, waits, syncs, mine))
    return tuple(found)


class _Phases:
    """Stretches of the host's time that are backward pass or update."""

    def __init__(self, host: Sequence[Event]) -> None:
        marks = {"autograd::engine": "backward", "Optimizer.step": "update"}
        self._spans = sorted(
            (event.ts, event.end, phase)
            for event in host
            for word, phase in marks.items()
            if event.name.startswith(word)
        )
        self._starts = [start for start, _, _ in self._spans]

    def at(self, moment: float) -> str:
        """Return the phase of a moment of the host; empty where no span says it."""
        place = bisect_right(self._starts, moment) - 1
        return self._spans[place][2] if place >= 0 and moment <= self._spans[place][1] else ""


def _stream_waits(scanned: Scanned) -> dict[object, list[tuple[float, str, float]]]:
    """Stream -> when it was made to wait, for which stream, and for what was launched there until when."""
    recorded = {one.correlation: one.ts for one in scanned.launches} if scanned.syncs else {}
    found: dict[object, list[tuple[float, str, float]]] = defaultdict(list)
    for one in scanned.syncs:
        until = recorded.get(one.args.get("wait_on_cuda_event_record_corr_id"))
        called = recorded.get(one.correlation, one.ts)
        if until is not None and "wait_on_stream" in one.args:
            found[one.stream].append((called, str(one.args["wait_on_stream"]), until))
    for waits in found.values():
        waits.sort()
    return found


def _frame(window: StepWindow, works: Sequence[Work]) -> _Frame:
    """The step on the stream that computes longest, as early as the marks allow; the others beside it if they fit."""
    spans: dict[str, list[float]] = {}
    for work in works:
        begin, end, busy = spans.get(work.stream, (work.event.ts, work.event.end, 0.0))
        taken = 0.0 if work.is_collective else work.event.dur
        spans[work.stream] = [min(begin, work.event.ts), max(end, work.event.end), busy + taken]
    first, last, _ = max(spans.values(), key=lambda span: span[2])
    length = max(window.length, last - first)
    start = min(max(window.start, last - length), first)
    shifts = {HOST: start - window.start}
    carries = {work.stream for work in works if work.is_collective}
    for stream, (begin, end, _) in spans.items():
        late = max(end - (start + length), 0.0)
        early = max(start - begin, 0.0)
        shifts[stream] = 0.0 if stream in carries else early or -min(late, begin - start)
    return _Frame(start, start + length, shifts)


def _step(
    window: StepWindow, works: Sequence[Work], records: Records, phases: _Phases,
    waits: Mapping[object, Sequence[tuple[float, str, float]]], syncs: Sequence[tuple[float, float]],
    grads: Sequence[Event],
) -> StepTrace:  # fmt: skip
    frame = _frame(window, works)
    made = _Ops(frame, works, phases, waits, syncs)
    exchanges = []
    for work in works:
        if work.is_collective:
            said = records.of(work.event, work.launch)
            start, end = frame.span(work)
            exchanges.append(Exchange(said.kind, said.bytes, 1e-6 * start, 1e-6 * end, made.after(start), said.group))
    gradients = [GradientReady(input_bytes(grad), made.launched_by(grad.end), input_dtype(grad)) for grad in grads]
    return StepTrace(
        window.number, 1e-6 * frame.start, 1e-6 * frame.end, made.ops(), tuple(exchanges),
        tuple(one for one in gradients if one.after >= 0), host_s=1e-6 * window.length,
    )  # fmt: skip


class _Ops:
    """Ops of a step in the order of their launches: a launch of the host before each."""

    def __init__(
        self, frame: _Frame, works: Sequence[Work], phases: _Phases,
        waits: Mapping[object, Sequence[tuple[float, str, float]]], syncs: Sequence[tuple[float, float]],
    ) -> None:  # fmt: skip
        self._frame, self._phases, self._waits = frame, phases, waits
        self._rows: list[_Row] = []
        self._streams: dict[str, list[_Item]] = defaultdict(list)
        self._ends: list[tuple[float, int]] = []
        self._launched: list[tuple[float, int]] = []
        self._last: list[int] = []
        ready = self._ready(works)
        syncs = [one for one in syncs if works and one[1] > works[0].launched]
        host, asked = -1, 0
        for work, moment in zip(works, ready, strict=True):
            start, end = frame.span(work)
            place, after, phase = -1, set[int](), phases.at(work.launched)
            if not work.is_collective:
                if work.launch is not None:
                    waited = set[int]()
                    while asked < len(syncs) and syncs[asked][1] <= work.launch.ts:
                        waited |= self._ended_in(*syncs[asked], moment)
                        asked += 1
                    host = len(self._rows)
                    self._add(_Row(HOST, phase, moment, moment, HOST, waited))
                    after.add(host)
                after |= self._recorded(work, start)
                place = len(self._rows)
                self._add(_Row(work.event.name, phase, start, end, work.stream, after))
                self._launched.append((work.launched, place))
            self._streams[work.stream].append(_Item(start, end, work.stream, work.launched, moment, place))

    def _add(self, row: _Row) -> None:
        insort(self._ends, (row.end, len(self._rows)))
        self._rows.append(row)

    def after(self, start: float) -> int:
        """Return the op after which an exchange begins: of those before it the last that had ended."""
        at = bisect_right(self._ends, (start + _ROUNDED, len(self._rows)))
        return self._ends[at - 1][1] if at else -1

    def launched_by(self, moment: float) -> int:
        """Return the last op that the host had launched by a moment."""
        if len(self._last) != len(self._launched):
            self._launched.sort()
            self._last = list(accumulate((place for _, place in self._launched), max))
        at = bisect_right(self._launched, (moment, len(self._rows)))
        return self._last[at - 1] if at else -1

    def ops(self) -> tuple[Op, ...]:
        """Return all ops, each with the earlier ones that it waits for."""
        lanes = self._lanes()
        backward = max((place for place, row in enumerate(self._rows) if row.phase == "backward"), default=None)
        found = []
        for place, row in enumerate(self._rows):
            phase = row.phase or ("forward" if backward is None or place < backward else "update")
            lane, after = lanes.get(place, (row.stream, _NONE))
            after = row.after | after if after else row.after
            earlier = tuple(sorted(one for one in after if 0 <= one < place)) if after else ()
            found.append(Op(row.name, phase, 1e-6 * row.start, 1e-6 * row.end, 0, lane, earlier))
        return tuple(found)

    def _ready(self, works: Sequence[Work]) -> list[float]:
        """Moments of the launches: as far behind the host as its step is, and never after the work itself began."""
        found, latest = [], float("inf")
        for work in reversed(works):
            if work.launch is not None and not work.is_collective:
                start, _ = self._frame.span(work)
                latest = min(latest, work.launch.ts + self._frame.shifts[HOST], start)
            found.append(max(latest, self._frame.start))
        return found[::-1]

    def _ended_in(self, begin: float, end: float, moment: float) -> set[int]:
        """The last work that ended while the host stood in a call that waits."""
        last = None
        for items in self._streams.values():
            for one in reversed(items[-_LOOK_BACK:]):
                if begin < one.end <= min(end, moment) and (last is None or one.end > last.end):
                    last = one
        return {last.place} if last is not None else set()

    def _recorded(self, work: Work, start: float) -> set[int]:
        """Work on other streams that this one was made to wait for, as the profiler recorded it."""
        waits = self._waits.get(work.event.stream) if self._waits else None
        if not waits:
            return set()
        found: set[int] = set()
        own = self._streams[work.stream]
        since = own[-1].launched if own else float("-inf")
        for called, stream, until in waits[bisect_right(waits, (since, "~", _LAST)) :]:
            if called > work.launched:
                break
            if called > since:
                before = [one for one in self._streams.get(stream, ())[-_LOOK_BACK:] if one.launched <= until]
                if before and before[-1].end <= start + _ROUNDED:
                    found.add(before[-1].place)
        return found

    def _lanes(self) -> dict[int, tuple[str, set[int] | frozenset[int]]]:
        """Place -> stream, another lane of it where kernels of one stream overlap, and what it seems to wait for."""
        found: dict[int, tuple[str, set[int] | frozenset[int]]] = {}
        every = sorted((one for items in self._streams.values() for one in items), key=lambda one: one.end)
        ends = [one.end for one in every]
        for stream, items in self._streams.items():
            lanes, recent, free = list[float](), list[_Item](), self._frame.start
            for one in sorted((item for item in items if item.place >= 0), key=lambda item: item.start):
                lane = next((n for n, end in enumerate(lanes) if end <= one.start + _ROUNDED), len(lanes))
                after: set[int] | frozenset[int] = _NONE
                if lane or len(lanes) > 1:
                    before = [item for item in recent if item.end <= one.start + _ROUNDED]
                    after = {max(before, key=lambda item: item.end).place} if before else _NONE
                lanes += [0.0] * (lane == len(lanes))
                lanes[lane] = one.end
                at = bisect_right(ends, one.start + _ROUNDED) - 1
                if at >= 0 and max(free, one.ready) + _ROUNDED < ends[at] and one.start - ends[at] <= _FOLLOWS:
                    after = after | {every[at].place} if every[at].stream != stream else after
                recent = [*recent[-3 - len(lanes) :], one]
                free = max(free, one.end)
                found[one.place] = (f"{stream}.{lane}" if lane else stream, after)
        return found


def overlaps(works: Sequence[Work]) -> int:
    """Count events of a stream that begin before the one before has ended."""
    ends, count = float("-inf"), 0
    for work in works:
        count += work.event.ts < ends - _ROUNDED
        ends = max(ends, work.event.end)
    return count


def busy_us(spans: Sequence[tuple[float, float]]) -> float:
    """Count microseconds that any of these spans, by start, covers."""
    total, until = 0.0, float("-inf")
    for start, end in spans:
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total
