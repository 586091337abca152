"""Outcome: a partition under its schedule, replayed: seconds of a step, what workers wait for, how old weights are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cdmpp.partition.chain import Chain
from cdmpp.partition.stream_tasks import HANDED, RETURNED, SENT, UPDATE, StreamKey, StreamTasks, Worker
from cdmpp.simulate.engine import simulate
from cdmpp.simulate.intervals import Interval
from cdmpp.simulate.task import check_tasks
from cdmpp.simulate.timeline import Span, Timeline
from cdmpp.steps.schedule import BACKWARD, FORWARD

LOCKS = ("forward lock", "backward lock", "update lock")
"""What a worker that does nothing waits for: results of earlier stages; gradients of later ones; an update, or what
must end before it (after Jaderberg and others, "Decoupled neural interfaces", ICML 2017)."""
STEPS, STEADY = 4, 2
"""Steps that are replayed of a schedule that flushes, and the one that is reported."""
_FILLING, _LEAST = 4, 40
"""Without flushes as many times the micro-batches under way pass before the reported ones, and are reported; at least
so many."""


@dataclass(frozen=True)
class WorkerShare:
    """The reported time of one worker in parts, which add up to 1."""

    worker: Worker
    computing: float
    """Passes and updates."""
    sending: float
    """Messages during which it does nothing else; where they overlap, what its host adds to them."""
    waiting: Mapping[str, float]
    """The part of each of ``LOCKS``."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """A replay in steady state."""

    chain: Chain
    timeline: Timeline
    window_s: Interval
    """The reported time."""
    micro_batches: int
    """Micro-batches that end in the reported time."""

    @property
    def step_s(self) -> float:
        """Return the seconds of the micro-batches of one step."""
        begin, end = self.window_s
        return (end - begin) * self.chain.problem.micro_batches / self.micro_batches

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Everything that runs in the reported time, by start."""
        begin, end = self.window_s
        return tuple(one for one in self.timeline.spans.values() if one.end_s > begin and one.start_s < end)

    @cached_property
    def shares(self) -> tuple[WorkerShare, ...]:
        """Tell what each worker does."""
        found: dict[Worker, list[Span]] = {}
        for span in self.timeline.spans.values():
            for one in span.task.resources:
                if isinstance(one, Worker):
                    found.setdefault(one, []).append(span)
        return tuple(self._share(worker, found[worker]) for worker in sorted(found))

    def _share(self, worker: Worker, spans: Sequence[Span]) -> WorkerShare:
        begin, end = self.window_s
        busy, waits, until_s = {True: 0.0, False: 0.0}, dict.fromkeys(LOCKS, 0.0), 0.0
        for span in spans:
            for lock, first_s, last_s in self._waits(span, max(until_s, begin), end):
                waits[lock] += last_s - first_s
            is_computing = span.task.label not in (SENT, RETURNED, HANDED)
            busy[is_computing] += max(0.0, min(span.end_s, end) - max(span.start_s, begin))
            until_s = max(until_s, span.end_s)
        long_s = end - begin
        parts = {lock: seconds / long_s for lock, seconds in waits.items()}
        return WorkerShare(worker, busy[True] / long_s, busy[False] / long_s, parts)

    def _waits(self, span: Span, begin_s: float, end_s: float) -> Iterator[tuple[str, float, float]]:
        """Why a worker did nothing until a span began: lock, from, to."""
        until_s, one, is_forward = min(span.start_s, end_s), span, span.task.label in (FORWARD, SENT)
        while until_s > begin_s:
            lock = LOCKS[0] if is_forward else LOCKS[1]
            cause = None if one.cause is None else self.timeline.spans[one.cause]
            if cause is None:
                yield lock, begin_s, until_s
                return
            if is_forward and cause.task.label not in (FORWARD, SENT):
                lock = LOCKS[2]
            if span.task.label == UPDATE:
                lock = LOCKS[2]
            first_s = max(begin_s, min(cause.start_s, until_s))
            yield lock, first_s, until_s
            until_s, one = first_s, cause

    def waiting(self, lock: str) -> float:
        """Return the part of their time in which workers wait for a lock, on average."""
        return sum(one.waiting[lock] for one in self.shares) / len(self.shares)

    @property
    def computing(self) -> float:
        """Return the part of their time in which workers compute, on average."""
        return sum(one.computing for one in self.shares) / len(self.shares)

    @property
    def sending(self) -> float:
        """Return the part of their time in which workers only exchange messages, on average."""
        return sum(one.sending for one in self.shares) / len(self.shares)

    @cached_property
    def _keyed(self) -> dict[tuple[str, int], dict[int, Span]]:
        """Kind and stage -> number -> span."""
        found: dict[tuple[str, int], dict[int, Span]] = {}
        for key, span in self.timeline.spans.items():
            if isinstance(key, StreamKey):
                found.setdefault((key.kind, key.stage), {})[key.number] = span
        return found

    def live(self, stage: int) -> int:
        """Count the micro-batches that a device of a stage held at a time, at most, between its passes."""
        most, many = 0, self.chain.parts[stage].replicas
        for replica in range(many):
            begins = [(one.start_s, 1) for n, one in self._keyed[FORWARD, stage].items() if n % many == replica]
            ends = [(one.end_s, -1) for n, one in self._keyed[BACKWARD, stage].items() if n % many == replica]
            alive = 0
            for _, change in sorted(begins + ends):
                alive += change
                most = max(most, alive)
        return most

    def staleness(self, stage: int) -> int:
        """Count the updates of a stage between a forward pass and the update with its gradient, at most."""
        updates = sorted(self._keyed[UPDATE, stage].items())
        most, place = 0, 0
        for number, span in sorted(self._keyed[FORWARD, stage].items()):
            while place < len(updates) and updates[place][0] < number:
                place += 1
            most = max(most, sum(one.end_s > span.start_s for _, one in updates[:place]))
        return most


def replayed(chain: Chain) -> Outcome:
    """Replay a partition under its schedule until it repeats itself.

    Raises:
        CdmppError: more tasks than memory holds.
    """
    problem, stages = chain.problem, len(chain.parts)
    many = problem.micro_batches
    if problem.schedule.flushes:
        count, marks = STEPS * many, (STEADY * many - 1, (STEADY + 1) * many - 1)
    else:
        live = max(cost.live * part.replicas for cost, part in zip(chain.costs, chain.parts, strict=True))
        each = many * math.lcm(*(one.replicas for one in chain.parts))
        first = each * -(-(_FILLING * live + _LEAST) // each)
        last = first + each * -(-max(_FILLING * live, _LEAST) // each)
        count, marks = last + 2 * live + 1, (first - 1, last - 1)
        count = many * -(-count // many)
    check_tasks(5 * count * stages, f"replaying {count} micro-batches on {stages} stages", "take fewer micro-batches")
    tasks = StreamTasks(chain, count)
    timeline = simulate(tasks.tasks(), rates=tasks.rates)
    kinds = (UPDATE,) if problem.schedule.flushes else (BACKWARD,)
    ends = [
        max(timeline.spans[StreamKey(kind, stage, mark)].end_s for kind in kinds for stage in _ending(chain))
        for mark in marks
    ]
    return Outcome(chain, timeline, (ends[0], ends[1]), marks[1] - marks[0])


def _ending(chain: Chain) -> range:
    """Stages whose ends mark that of a step: all where they flush, else the first, where micro-batches end."""
    return range(len(chain.parts)) if chain.problem.schedule.flushes else range(1)
