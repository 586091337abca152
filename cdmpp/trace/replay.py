"""Replay of a traced job: the same graph, run by the event engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cdmpp.simulate import Span, Task, Timeline, simulate
from cdmpp.simulate.flow import Flow
from cdmpp.trace.beside import beside_exchanges, beside_s, without
from cdmpp.trace.job import JobRank, TracedJob
from cdmpp.trace.link_share import links_of, queue_of

STEPS = 3
"""One after the other: ranks that drift apart do so from the second on."""
_TURNS, _CLOSE = 12, 1e-3
"""Most replays of an ``apart`` job, and the share of its step by which two may differ."""


@dataclass(frozen=True)
class Replay:
    """A job that ran on paper."""

    job: TracedJob
    step_s: float
    """From the end of the first of three steps to the end of the last, a step."""
    timeline: Timeline
    """Of all three."""
    rank_waits_s: Mapping[int, float]
    """Rank -> seconds of the last step in which it ran nothing, not even a gap: it waited for exchanges."""

    @property
    def last_step(self) -> tuple[Span, ...]:
        """Spans of the last step."""
        prefix = f"{STEPS - 1}/"
        return tuple(span for name, span in self.timeline.spans.items() if str(name).startswith(prefix))

    def last_timeline(self) -> Timeline:
        """The last step alone, from its first span on: for a viewer."""
        spans = self.last_step
        start_s = min((span.start_s for span in spans), default=0.0)
        moved = {s.task.key: replace(s, start_s=s.start_s - start_s, end_s=s.end_s - start_s) for s in spans}
        return Timeline({n: replace(s, cause=s.cause if s.cause in moved else None) for n, s in moved.items()})


def replay(job: TracedJob) -> Replay:
    """Run ``job`` as it was traced, or as a what-if made it.

    Ops of an ``apart`` job take longer beside exchanges: it is run until that changes its step no more.
    """
    if not job.is_apart:
        return _replayed(job)
    beside = {rank.rank: [0.0] * len(rank.ops) for rank in job.ranks}
    made, last_s = _replayed(job), 0.0
    for turn in range(_TURNS):
        if abs(made.step_s - last_s) <= _CLOSE * made.step_s:
            break
        now, last_s = beside_s(job, made.timeline, STEPS - 1), made.step_s
        if turn > _TURNS // 3:  # it goes to and fro
            now = {rank: [(a + b) / 2 for a, b in zip(now[rank], beside[rank], strict=True)] for rank in now}
        beside = now
        made = _replayed(beside_exchanges(job, beside))
    return made


def apart(job: TracedJob) -> TracedJob:
    """With ops as they are beside no exchange; the job as it is where no share of a processor was probed."""
    if job.is_apart or not job.processor_share:
        return job
    return without(job, beside_s(job, _replayed(job).timeline, STEPS - 1))


def _replayed(job: TracedJob) -> Replay:
    tasks = [task for step in range(STEPS) for task in _tasks(job, step)]
    rates = {link: 1.0 for one in job.exchanges for link in links_of(one.ranks, one.kind, one.group)}
    timeline = simulate(tasks, rates=rates)
    ends = [
        max((span.end_s for name, span in timeline.spans.items() if str(name).startswith(f"{step}/rank")), default=0.0)
        for step in range(STEPS)
    ]
    waits = {}
    for rank in job.ranks:
        mine = [s for n, s in timeline.spans.items() if str(n).startswith(f"{STEPS - 1}/rank{rank.rank}/")]
        begin = timeline.spans[f"{STEPS - 2}/rank{rank.rank}/end"].end_s
        spent = sum(span.end_s - span.start_s for span in mine)
        waits[rank.rank] = max((span.end_s for span in mine), default=begin) - begin - spent
    return Replay(job, (ends[-1] - ends[0]) / (STEPS - 1), timeline, waits)


def _tasks(job: TracedJob, step: int) -> Iterator[Task]:
    for rank in job.ranks:
        yield from _rank_tasks(rank, step)
    for place, one in enumerate(job.exchanges):
        arrivals = []
        for number in one.ranks:
            name = f"{step}/arrival{place}/rank{number}"
            yield Task(name, one.lag_s[number], (), _after(step, number, one.after[number]), label="arrival")
            arrivals.append(name)
        queue = queue_of(one.kind, one.group)
        slots: tuple[str, ...] = (f"messages {queue}",) if queue else ()
        if one.kind != "send_recv":  # messages need no worker
            slots = tuple(f"rank {number} exchange {place % job.workers}" for number in one.ranks)
        flow = Flow(one.wire_s, links_of(one.ranks, one.kind, one.group))  # a second of the link is its unit
        yield Task(f"{step}/exchange{place}", 0.0, slots, tuple(arrivals), step, label=one.kind, flow=flow)


def _rank_tasks(rank: JobRank, step: int) -> Iterator[Task]:
    stream, prefix = (f"rank {rank.rank}",), f"{step}/rank{rank.rank}"
    for place, op in enumerate(rank.ops):
        after = _after(step, rank.rank, place - 1) + tuple(f"{step}/exchange{number}" for number in op.waits)
        if op.gap_s:
            yield Task(f"{prefix}/gap{place}", op.gap_s, stream, after, label="gap")
            after = (f"{prefix}/gap{place}",)
        yield Task(f"{prefix}/{place}", op.duration_s, stream, after, label=f"{op.phase}: {op.name}")
    yield Task(f"{prefix}/end", rank.tail_s, stream, _after(step, rank.rank, len(rank.ops) - 1), label="gap")


def _after(step: int, rank: int, place: int) -> tuple[str, ...]:
    if place >= 0:
        return (f"{step}/rank{rank}/{place}",)
    return (f"{step - 1}/rank{rank}/end",) if step else ()
