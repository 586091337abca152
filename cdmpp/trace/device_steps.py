"""Steps of a rank whose operators run on a device: streams at once, the host that feeds them, what waits for what."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cdmpp.trace.device_work import DeviceWork, Work, spans
from cdmpp.trace.event import Event
from cdmpp.trace.exchange_events import Records, input_bytes, input_dtype
from cdmpp.trace.rank_trace import HOST, Exchange, GradientReady, Op, StepTrace
from cdmpp.trace.scanned import Scanned
from cdmpp.trace.step_window import StepWindow, places

_ROUNDED = 1.0
"""Microseconds by which older profilers round: so much overlap on a stream is none."""
_FOLLOWS = 50.0
"""Microseconds: work that begins so soon after the end of work on another stream, with its own stream idle, may have
waited for it."""
_LOOK_BACK = 64
"""Events of a stream among which those that something waits for are sought."""
_LAST = float("inf")
_SYNCS = ("ynchronize", "emcpy")


@dataclass(frozen=True)
class _Frame:
    """The times of one step on each stream: streams that run ahead of others, or behind, are moved into its span."""

    start: float
    end: float
    host_shift: float
    """Microseconds to add to a time of the host."""
    streams: Mapping[str, Sequence[int]]
    """Stream -> which of the works run on it."""
    starts: np.ndarray
    """When each work begins in the step."""
    ends: np.ndarray


def device_steps(
    scanned: Scanned, windows: Sequence[StepWindow], work: DeviceWork, records: Records
) -> tuple[StepTrace, ...]:
    """Return steps that are whole, and last as the host's marks say, or longer where the device does."""
    phases = _Phases(scanned.host)
    waits = _stream_waits(scanned)
    waiting = {name for name in {one.name for one in scanned.launches} if any(word in name.lower() for word in _SYNCS)}
    syncs = [(one.ts, one.end) for one in scanned.launches if one.name in waiting]
    syncs.sort(key=lambda span: span[1])
    grads: list[list[Event]] = [[] for _ in (*windows, None)]
    ready = [one for one in scanned.host if one.name == "torch::autograd::AccumulateGrad"]
    for one, place in zip(ready, places(np.array([one.ts for one in ready]), windows).tolist(), strict=True):
        grads[place].append(one)
    for used in (scanned.host, scanned.launches, scanned.device, work.left_over):
        used.clear()
    found = []
    for place, (window, lost) in enumerate(zip(windows, work.lost, strict=True)):
        works, work.steps[place] = work.steps[place], []
        if not lost:
            found.append(_step(window, works, records, phases, waits, syncs, grads[place]))
    return tuple(found)


class _Phases:
    """Stretches of the host's time that are backward pass or update."""

    def __init__(self, host: Sequence[Event]) -> None:
        words = {"autograd::engine": "backward", "Optimizer.step": "update"}
        names = {event.name for event in host}
        marks = {name: phase for name in names for word, phase in words.items() if name.startswith(word)}
        found = sorted((event.ts, event.end, marks[event.name]) for event in host if event.name in marks)
        starts, ends, phases = zip((-np.inf, -np.inf, ""), *found, strict=True)
        self._starts, self._ends, self._phases = np.array(starts), np.array(ends), np.array(phases, object)

    def at(self, moments: np.ndarray) -> np.ndarray:
        """Return the phase of each moment of the host; empty where no span says it."""
        at = np.searchsorted(self._starts, moments, "right") - 1
        return np.where(moments <= self._ends[at], self._phases[at], "")


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
    streams: dict[str, list[int]] = defaultdict(list)
    for row, work in enumerate(works):
        streams[work.stream].append(row)
    starts, ends = spans(works)
    computes = np.array([0.0 if work.is_collective else work.event.dur for work in works])
    limits = {
        stream: (float(starts[rows].min()), float(ends[rows].max()), float(computes[rows].sum()))
        for stream, rows in streams.items()
    }
    first, last, _ = max(limits.values(), key=lambda span: span[2])
    length = max(window.length, last - first)
    start = min(max(window.start, last - length), first)
    carries = {work.stream for work in works if work.is_collective}
    for stream, (begin, end, _) in limits.items():
        late = max(end - (start + length), 0.0)
        early = max(start - begin, 0.0)
        shift = 0.0 if stream in carries else early or -min(late, begin - start)
        starts[streams[stream]] += shift
        ends[streams[stream]] += shift
    return _Frame(start, start + length, start - window.start, streams, starts, ends)


def _step(
    window: StepWindow, works: Sequence[Work], records: Records, phases: _Phases,
    waits: Mapping[object, Sequence[tuple[float, str, float]]], syncs: Sequence[tuple[float, float]],
    grads: Sequence[Event],
) -> StepTrace:  # fmt: skip
    frame = _frame(window, works)
    made = _Ops(frame, works, phases, waits, syncs)
    exchanges = []
    for row, work in enumerate(works):
        if work.is_collective:
            said, start, end = records.of(work.event, work.launch), float(frame.starts[row]), float(frame.ends[row])
            exchanges.append(
                Exchange(said.kind, said.bytes, 1e-6 * start, 1e-6 * end, made.after(start), said.group,
                         sequence=said.sequence)
            )  # fmt: skip
    gradients = [GradientReady(input_bytes(grad), made.launched_by(grad.end), input_dtype(grad)) for grad in grads]
    return StepTrace(
        window.number, 1e-6 * frame.start, 1e-6 * frame.end, made.ops(), tuple(exchanges),
        tuple(one for one in gradients if one.after >= 0), host_s=1e-6 * window.length,
    )  # fmt: skip


class _Ops:
    """Ops of a step in the order of their launches: a launch of the host before each.

    Columns have a row for each piece of work. An exchange is in place -1 among the ops.
    """

    def __init__(
        self, frame: _Frame, works: Sequence[Work], phases: _Phases,
        waits: Mapping[object, Sequence[tuple[float, str, float]]], syncs: Sequence[tuple[float, float]],
    ) -> None:  # fmt: skip
        self._works, self._streams, self._starts, self._ends = works, frame.streams, frame.starts, frame.ends
        self._is_op = np.array([not work.is_collective for work in works])
        self._has_launch = self._is_op & np.array([work.launch is not None for work in works])
        self._launched = np.array([work.launched for work in works])
        self._phases = phases.at(self._launched)
        self._places = np.where(self._is_op, np.cumsum(self._is_op.astype(int) + self._has_launch) - 1, -1)
        # Moments of the launches: as far behind the host as its step is, and never after the work itself began.
        ready = np.where(self._has_launch, np.minimum(self._launched + frame.host_shift, self._starts), np.inf)
        self._ready = np.maximum(np.minimum.accumulate(ready[::-1])[::-1], frame.start)
        self._after: dict[int, set[int]] = defaultdict(set)
        self._lanes: dict[int, str] = {}
        self._wait_on_host(syncs)
        if waits:
            self._wait_as_recorded(waits)
        self._wait_on_streams(frame.start)

    @cached_property
    def _by_end(self) -> tuple[np.ndarray, np.ndarray]:
        """Ends of all ops, and their places."""
        ends = np.concatenate([self._ready[self._has_launch], self._ends[self._is_op]])
        places = np.concatenate([self._places[self._has_launch] - 1, self._places[self._is_op]])
        order = np.lexsort((places, ends))
        return ends[order], places[order]

    def after(self, start: float) -> int:
        """Return the op after which an exchange begins: of those before it the last that had ended."""
        ends, places = self._by_end
        at = np.searchsorted(ends, start + _ROUNDED, "right")
        return int(places[at - 1]) if at else -1

    def launched_by(self, moment: float) -> int:
        """Return the last op that the host had launched by a moment."""
        return int(self._places[self._is_op & (self._launched <= moment)].max(initial=-1))

    def ops(self) -> tuple[Op, ...]:
        """Return all ops, each with the earlier ones that it waits for."""
        backward = self._places[self._phases == "backward"].max(initial=-1)
        later = np.where((backward < 0) | (self._places < backward), "forward", "update").astype(object)
        phases = np.where(self._phases == "", later, self._phases)
        times_s = (1e-6 * times for times in (self._ready, self._starts, self._ends))
        columns = (column.tolist() for column in (self._places, self._has_launch, phases, *times_s))
        found = list[Op]()
        for work, place, has_launch, phase, ready_s, start_s, end_s in zip(self._works, *columns, strict=True):
            if place < 0:
                continue
            if has_launch:
                found.append(Op(HOST, phase, ready_s, ready_s, 0, HOST, self._earlier(place - 1)))
            after = self._earlier(place, place - 1) if has_launch else self._earlier(place)
            found.append(Op(work.event.name, phase, start_s, end_s, 0, self._lanes.get(place, work.stream), after))
        return tuple(found)

    def _earlier(self, place: int, *launch: int) -> tuple[int, ...]:
        if place not in self._after:
            return launch
        return tuple(sorted(one for one in {*self._after[place], *launch} if 0 <= one < place))

    def _before(self, stream: str, row: int) -> Sequence[int]:
        """Rows of a stream that were launched just before one."""
        rows = self._streams.get(stream, ())
        at = bisect_left(rows, row)
        return rows[max(at - _LOOK_BACK, 0) : at]

    def _wait_on_host(self, syncs: Sequence[tuple[float, float]]) -> None:
        """The next launch waits for the last work that ended while the host stood in a call that waits."""
        latest = np.maximum.accumulate(np.where(self._has_launch, self._launched, -np.inf))
        for begin, end in syncs[bisect_right(syncs, self._launched[0], key=lambda span: span[1]) :]:
            row = int(np.searchsorted(latest, end))
            if row == len(latest):
                break
            recent = np.array([one for stream in self._streams for one in reversed(self._before(stream, row))], int)
            ends = self._ends[recent]
            recent = recent[(begin < ends) & (ends <= min(end, self._ready[row]))]
            if len(recent):
                last = recent[np.argmax(self._ends[recent])]
                self._after[int(self._places[row]) - 1].add(int(self._places[last]))

    def _wait_as_recorded(self, waits: Mapping[object, Sequence[tuple[float, str, float]]]) -> None:
        """Work waits for that on other streams which the profiler recorded."""
        for row in np.flatnonzero(self._is_op).tolist():
            work = self._works[row]
            mine = waits.get(work.event.stream)
            if not mine:
                continue
            own = self._before(work.stream, row)
            since = self._works[own[-1]].launched if own else -_LAST
            for called, stream, until in mine[bisect_right(mine, (since, "~", _LAST)) :]:
                if called > work.launched:
                    break
                if called > since:
                    before = [one for one in self._before(stream, row) if self._works[one].launched <= until]
                    if before and self._ends[before[-1]] <= self._starts[row] + _ROUNDED:
                        self._after[int(self._places[row])].add(int(self._places[before[-1]]))

    def _wait_on_streams(self, begin: float) -> None:
        """Work seems to wait for what ended just before it on another stream, or on another lane of its own."""
        rows = np.concatenate([np.array(mine) for mine in self._streams.values()])
        every = rows[np.argsort(self._ends[rows], kind="stable")]
        every_ends, names = self._ends[every], np.array([work.stream for work in self._works], object)[every]
        for stream, all_rows in self._streams.items():
            mine = np.array([row for row in all_rows if self._is_op[row]], int)
            mine = mine[np.argsort(self._starts[mine], kind="stable")]
            starts, ends = self._starts[mine], self._ends[mine]
            free = np.maximum(_until(np.append(begin, ends))[1:], self._ready[mine])
            at = np.searchsorted(every_ends, starts + _ROUNDED, "right") - 1
            last = every_ends[at]
            follows = (at >= 0) & (free + _ROUNDED < last) & (starts - last <= _FOLLOWS) & (names[at] != stream)
            for row, other in zip(self._places[mine[follows]], self._places[every[at[follows]]], strict=True):
                self._after[int(row)].add(int(other))
            if (ends[:-1] > starts[1:] + _ROUNDED).any():
                self._share(stream, mine.tolist())

    def _share(self, stream: str, rows: Sequence[int]) -> None:
        """Kernels of one stream that overlap are on lanes of it."""
        places, starts, ends = (column[rows].tolist() for column in (self._places, self._starts, self._ends))
        lanes = list[float]()
        for number, (place, start, end) in enumerate(zip(places, starts, ends, strict=True)):
            lane = next((n for n, until in enumerate(lanes) if until <= start + _ROUNDED), len(lanes))
            if lane or len(lanes) > 1:
                recent = range(max(number - 4 - len(lanes), 0), number)
                before = [one for one in recent if ends[one] <= start + _ROUNDED]
                if before:
                    self._after[place].add(places[max(before, key=ends.__getitem__)])
            lanes += [0.0] * (lane == len(lanes))
            lanes[lane] = end
            if lane:
                self._lanes[place] = f"{stream}.{lane}"


def overlaps(begins: np.ndarray, ends: np.ndarray) -> int:
    """Count events of a stream, by begin, that begin before the one before has ended."""
    return int(np.count_nonzero(begins < _until(ends) - _ROUNDED))


def busy_us(begins: np.ndarray, ends: np.ndarray) -> float:
    """Count microseconds that any of these spans, by begin, covers."""
    return float(np.cumsum(np.append(0.0, np.maximum(ends - np.maximum(begins, _until(ends)), 0.0)))[-1])


def _until(ends: np.ndarray) -> np.ndarray:
    """The latest end of all before each."""
    return np.maximum.accumulate(np.concatenate(([-np.inf], ends)))[:-1]
