"""What-if: a traced job with one thing changed, to be replayed. Each function leaves the given job as it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cdmpp.collectives.topology import MOST_RANKS
from cdmpp.errors import CdmppError
from cdmpp.platform.limits import Limits, numbers
from cdmpp.simulate.task import check_tasks
from cdmpp.trace.buckets import with_buckets
from cdmpp.trace.job import JobOp, JobRank, TracedJob
from cdmpp.trace.replay import STEPS, apart
from cdmpp.trace.wire import rescaled, slowed, wires

_FACTOR = numbers(0, 10**6, "times what it was", above=True)
_LIMITS = {
    "ranks": Limits(2, MOST_RANKS, "ranks"),
    "bucket_mb": numbers(0, 10**6, "MiB", above=True),
    "latency": numbers(0, 10**6, "times what it was"),
    "link_gbps": numbers(0, 10**6, "Gbit/s", above=True),
}
_EVEN = 0.5
"""Of a processor that two busy threads have each."""


def with_bandwidth(job: TracedJob, factor: float, link_gbps: float | None = None) -> TracedJob:
    """Links that carry ``factor`` times as many bytes a second; their latency stays.

    ``link_gbps``: Gbit/s of the traced links, which tell an exchange that they hold up from one that processors do.
    Operators lose more beside an exchange on a faster link, not as much more: one of fewer bytes a second needs more of
    a processor for each. Beyond half of it two that are busy share it evenly.
    """
    _positive("bandwidth", factor)
    if link_gbps is not None:
        _positive("link_gbps", link_gbps)
    job, wire = apart(job), wires(job)
    rate = None if link_gbps is None else 1e9 / 8 * link_gbps
    seconds = [slowed(one, wire[one.kind], factor, rate) for one in job.exchanges]
    share = min(math.sqrt(factor) * job.processor_share, max(_EVEN, job.processor_share))
    return replace(_with_wires(job, seconds), processor_share=share)


def with_latency(job: TracedJob, factor: float) -> TracedJob:
    """Exchanges whose fixed part takes ``factor`` times as long."""
    if not factor >= 0:
        raise CdmppError(f"latency {factor}: expected a factor from 0 up")
    job, wire = apart(job), wires(job)
    fixed = [min(wire[one.kind].scale * wire[one.kind].latency_s, one.wire_s) for one in job.exchanges]
    return _with_wires(
        job, [one.wire_s + (factor - 1) * part_s for one, part_s in zip(job.exchanges, fixed, strict=True)]
    )


def with_kernel(job: TracedJob, name: str, factor: float) -> TracedJob:
    """Operators whose name has ``name`` in it take ``factor`` times as long, on all ranks.

    Raises:
        CdmppError: no operator of the name.
    """
    _positive(f"kernel {name}", factor)
    if not any(name in op.name for rank in job.ranks for op in rank.ops):
        took: dict[str, float] = {}
        for op in (op for rank in job.ranks for op in rank.ops):
            took[op.name] = took.get(op.name, 0.0) + op.duration_s
        longest = sorted(took, key=lambda key: -took[key])[:5]
        raise CdmppError(f"no operator of the trace has {name!r} in its name; the longest are {', '.join(longest)}")
    return _each_op(apart(job), lambda op: replace(op, duration_s=op.duration_s * (factor if name in op.name else 1.0)))


def without_gaps(job: TracedJob) -> TracedJob:
    """A host that launches at once."""
    bare = _each_op(apart(job), lambda op: op if op.held_by else replace(op, gap_s=0.0))
    return replace(bare, ranks=tuple(replace(rank, tail_s=0.0) for rank in bare.ranks))


def without_exchanges(job: TracedJob) -> TracedJob:
    """Links without end: nothing takes time on the wire."""
    return _with_wires(apart(job), [0.0] * len(job.exchanges))


def straggler(job: TracedJob) -> int | None:
    """The rank with most to compute; None where no other does the same, as of a server and one worker."""
    alike = [rank for rank in job.ranks if len(_alike(job, rank)) > 1]
    return max(alike, key=lambda rank: rank.busy_s).rank if alike else None


def without_straggler(job: TracedJob) -> TracedJob:
    """The slowest rank as fast as the median of the others that do the same; the job as it is where none does."""
    slow = straggler(job)
    if slow is None:
        return job
    job = apart(job)
    others = [rank for rank in _alike(job, job.rank(slow)) if rank.rank != slow]
    ops = tuple(
        replace(
            op,
            duration_s=statistics.median([other.ops[place].duration_s for other in others]),
            gap_s=statistics.median([other.ops[place].gap_s for other in others]),
        )
        for place, op in enumerate(job.rank(slow).ops)
    )
    ranks = tuple(replace(rank, ops=ops) if rank.rank == slow else rank for rank in job.ranks)
    return replace(job, ranks=ranks) if sum(op.duration_s for op in ops) < job.rank(slow).busy_s else job


def with_ranks(job: TracedJob, ranks: int) -> TracedJob:
    """``ranks`` ranks that do what the traced ones do, each with its own batch of the same size.

    Raises:
        CdmppError: fewer than two, or a job whose exchanges are not all among all ranks.
    """
    if not 2 <= ranks <= MOST_RANKS:
        raise CdmppError(f"ranks {ranks:.12g}: expected 2 to {MOST_RANKS:,}")
    most = max(len(rank.ops) for rank in job.ranks) + len(job.exchanges)
    check_tasks(2 * STEPS * ranks * most, f"replaying {STEPS} steps of {ranks:,} ranks", "take fewer ranks")
    if any(one.ranks != tuple(rank.rank for rank in job.ranks) for one in job.exchanges):
        raise CdmppError("other ranks can be told only where every exchange is among all of them")
    job = apart(job)
    models = [job.ranks[number % len(job.ranks)] for number in range(ranks)]
    wire = wires(job)
    exchanges = tuple(
        replace(
            one,
            wire_s=rescaled(one, wire[one.kind], ranks=ranks),
            after={number: one.after[model.rank] for number, model in enumerate(models)},
            lag_s={number: one.lag_s[model.rank] for number, model in enumerate(models)},
        )
        for one in job.exchanges
    )
    renumbered = tuple(replace(model, rank=number) for number, model in enumerate(models))
    return replace(job, ranks=renumbered, exchanges=exchanges, waits_s=None)


def changed(job: TracedJob, settings: Mapping[str, str]) -> TracedJob:
    """``{"bandwidth": "0.5", "bucket_mb": "1"}`` and so on, in this order; ``CdmppError`` names what may be set.

    ``link_gbps`` says what the traced links carry, for ``bandwidth``.
    """
    link_gbps = _number("link_gbps", settings["link_gbps"]) if "link_gbps" in settings else None
    if link_gbps is not None and "bandwidth" not in settings:
        raise CdmppError("--what-if link_gbps: it says what the traced links carry, for bandwidth=FACTOR beside it")
    settings = {key: text for key, text in settings.items() if key != "link_gbps"}
    makers: dict[str, Callable[[TracedJob, str], TracedJob]] = {
        "ranks": lambda job, text: with_ranks(job, _number("ranks", text)),
        "bucket_mb": lambda job, text: with_buckets(job, round(2**20 * _number("bucket_mb", text))),
        "bandwidth": lambda job, text: with_bandwidth(job, _number("bandwidth", text), link_gbps),
        "latency": lambda job, text: with_latency(job, _number("latency", text)),
        "straggler": lambda job, text: without_straggler(job) if _is_no(text) else job,
    }
    for key, text in settings.items():
        if key.startswith("kernel:"):
            job = with_kernel(job, key.partition(":")[2], _number(key, text))
        elif key not in makers:
            raise CdmppError(f"--what-if {key}: expected {', '.join(makers)}, link_gbps or kernel:NAME")
    for key, maker in makers.items():
        if key in settings:
            job = maker(job, settings[key])
    return job


def _with_wires(job: TracedJob, seconds: Sequence[float]) -> TracedJob:
    """Exchanges that take so long, and the gaps of ops that messages hold back."""
    times = [new_s / one.wire_s if one.wire_s else 1.0 for one, new_s in zip(job.exchanges, seconds, strict=True)]
    changed = tuple(replace(one, wire_s=new_s) for one, new_s in zip(job.exchanges, seconds, strict=True))
    held = _each_op(
        job, lambda op: replace(op, gap_s=op.gap_s * max(times[n] for n in op.held_by)) if op.held_by else op
    )
    return replace(held, exchanges=changed)


def _each_op(job: TracedJob, change: Callable[[JobOp], JobOp]) -> TracedJob:
    return replace(job, ranks=tuple(replace(rank, ops=tuple(map(change, rank.ops))) for rank in job.ranks))


def _alike(job: TracedJob, one: JobRank) -> list[JobRank]:
    names = [op.name for op in one.ops]
    return [rank for rank in job.ranks if [op.name for op in rank.ops] == names]


def _number(key: str, text: str) -> Any:
    limits = _LIMITS.get(key, _FACTOR)
    try:
        return limits.fitting(key, float(text) if not limits.whole else int(text))
    except ValueError:
        raise CdmppError(f"--what-if {key}={text}: expected {limits}") from None


def _is_no(text: str) -> bool:
    if text not in ("no", "none", "0"):
        raise CdmppError(f"--what-if straggler={text}: expected no")
    return True


def _positive(what: str, factor: float) -> None:
    if not 0 < factor < float("inf"):
        raise CdmppError(f"{what} {factor}: expected a positive factor")
