"""Diagnosis: what makes a step of a traced job long, in seconds that would go without each cause."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from cdmpp.simulate import Span
from cdmpp.trace.job import TracedJob
from cdmpp.trace.replay import Replay, replay
from cdmpp.trace.what_if import straggler, with_latency, without_exchanges, without_gaps, without_straggler

_SHOWN = 5


@dataclass(frozen=True)
class Cause:
    """One reason for a long step. Causes overlap: what one takes away, another may not take again."""

    name: str
    seconds: float
    """By which a step would be shorter without it."""
    advice: str
    spans: tuple[str, ...]
    """What shows it, longest first, as it stands in the timeline."""


def diagnose(job: TracedJob) -> tuple[Cause, ...]:
    """Causes, longest first; each replayed without it. Those of less than a thousandth of a step are left out."""
    base = replay(job)
    slow = straggler(job)
    tries: list[tuple[str, Callable[[TracedJob], TracedJob], str, Callable[[Replay], list[str]]]] = [
        (
            "exposed communication",
            without_exchanges,
            "a faster link, larger buckets, or more to compute a step",
            _waits,
        ),
        ("small messages", lambda job: with_latency(job, 0.0), "larger buckets: each message has a fixed cost", _small),
        ("idle gaps", without_gaps, "the host is slow to launch: fuse operators, load data ahead", _gaps),
    ]
    if slow is not None:
        advice = f"rank {slow} computes longest: look at its machine, or give it less"
        tries.append((f"straggler rank {slow}", without_straggler, advice, lambda base: _slower(base, slow)))
    if servers := servers_of(job):
        tries.append(
            ("server queue", lambda job: _idle_servers(job, servers), "more servers, or smaller parts", _queue)
        )
    found = []
    for name, change, advice, show in tries:
        saved_s = base.step_s - replay(change(job)).step_s
        if saved_s > 1e-3 * base.step_s:
            found.append(Cause(name, saved_s, advice, tuple(show(base)[:_SHOWN])))
    return tuple(sorted(found, key=lambda cause: -cause.seconds))


def servers_of(job: TracedJob) -> tuple[int, ...]:
    """Ranks that have no gradients of their own and get messages from others that have."""
    bare = {rank.rank for rank in job.ranks if not rank.gradients}
    given = {int(one.group.partition("->")[2]) for one in job.exchanges if "->" in one.group}
    return tuple(sorted(bare & given)) if len(bare) < len(job.ranks) else ()


def _idle_servers(job: TracedJob, servers: tuple[int, ...]) -> TracedJob:
    """Servers that compute nothing and take messages as they come."""
    ranks = tuple(
        replace(rank, tail_s=0.0, ops=tuple(replace(op, duration_s=0.0, gap_s=0.0) for op in rank.ops))
        if rank.rank in servers
        else rank
        for rank in job.ranks
    )
    return replace(job, ranks=ranks)


def _longest(spans: list[tuple[float, str]]) -> list[str]:
    return [text for _, text in sorted(spans, key=lambda pair: -pair[0])]


def _say(seconds: float, what: str) -> tuple[float, str]:
    return seconds, f"{1e3 * seconds:.3f} ms {what}"


def short(name: str) -> str:
    """A kernel's name without namespaces, template arguments and parameters."""
    if not name.startswith("void ") and "<" not in name:
        return name
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split("[<(]", plain, maxsplit=1)[0].rpartition("::")[2] or name


def _exchange_text(base: Replay, span: Span) -> str:
    place = int(span.task.key.rpartition("exchange")[2])
    one = base.job.exchanges[place]
    return f"exchange {place} ({one.kind}, {one.bytes / 1e6:.4g} MB{', ' + one.group if '->' in one.group else ''})"


def _waits(base: Replay) -> list[str]:
    """Ops that stood still for an exchange."""
    spans, found = base.timeline.spans, []
    for span in base.last_step:
        if span.cause is not None and "/exchange" in span.cause and "/rank" in span.task.key:
            rank = span.task.key.split("/")[1]
            before = max(
                (s.end_s for s in map(spans.__getitem__, span.task.after) if f"/{rank}/" in s.task.key), default=0.0
            )
            what = f"{rank} waits for {_exchange_text(base, spans[span.cause])}"
            found.append(_say(span.start_s - before, what))
    return _longest(found)


def _small(base: Replay) -> list[str]:
    spans = [s for s in base.last_step if "/exchange" in s.task.key]
    spans.sort(key=lambda s: base.job.exchanges[int(s.task.key.rpartition("exchange")[2])].bytes)
    return [_say(s.end_s - s.start_s, _exchange_text(base, s))[1] for s in spans]


def _gaps(base: Replay) -> list[str]:
    found = []
    for span in base.last_step:
        if span.task.label == "gap" and "/gap" in span.task.key:
            rank, _, place = span.task.key.split("/", 1)[1].partition("/gap")
            op = base.job.rank(int(rank.removeprefix("rank"))).ops[int(place)]
            found.append(_say(span.end_s - span.start_s, f"{rank} before op {place}, {short(op.name)}"))
    return _longest(found)


def _slower(base: Replay, slow: int) -> list[str]:
    fast = without_straggler(base.job).rank(slow)
    pairs = zip(base.job.rank(slow).ops, fast.ops, strict=True)
    return _longest(
        [
            _say(mine.duration_s - its.duration_s, f"longer: op {place}, {short(mine.name)}")
            for place, (mine, its) in enumerate(pairs)
            if mine.duration_s > its.duration_s
        ]
    )


def _queue(base: Replay) -> list[str]:
    found = []
    for number in servers_of(base.job):
        for place, op in enumerate(base.job.rank(number).ops):
            found.append(_say(op.duration_s + op.gap_s, f"server rank {number}, op {place}, {short(op.name)}"))
    return _longest(found)
