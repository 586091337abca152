"""A data-parallel job with buckets of another size: the same gradients, packed and waited for anew."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from cdmpp.errors import CdmppError
from cdmpp.trace.job import JobExchange, JobGradient, JobOp, JobRank, TracedJob
from cdmpp.trace.replay import apart
from cdmpp.trace.wire import Wire, wires

_COPY = "copy_bucket_to_grad"
_LAUNCH = "c10d::allreduce"


def with_buckets(job: TracedJob, bucket_bytes: int | Sequence[int]) -> TracedJob:
    """As PyTorch's DistributedDataParallel fills them: a bucket is full once it has ``bucket_bytes``.

    Gradients come in the order in which they become ready. Of several numbers the last holds for all that follow.

    Raises:
        CdmppError: no whole bytes, or a job whose all-reduces in the backward pass are not its gradients.
    """
    limits = (bucket_bytes,) if isinstance(bucket_bytes, int) else tuple(bucket_bytes)
    if min(limits, default=0) < 1:
        raise CdmppError(f"buckets of {bucket_bytes} bytes: expected 1 or more")
    job, old = apart(job), buckets_of(job)
    packed = _packed([one.bytes for one in job.ranks[0].gradients], limits)
    kept = [place for place in range(len(job.exchanges)) if place not in old]
    renamed = {place: number for number, place in enumerate(kept)}
    ranks, moved, launches = [], {}, {}
    for rank in job.ranks:
        new, places, launched = _repacked(rank, job, old, packed, renamed)
        ranks.append(new)
        moved[rank.rank], launches[rank.rank] = places, launched
    exchanges = [
        replace(job.exchanges[place], after={r: moved[r][a] for r, a in job.exchanges[place].after.items()})
        for place in kept
    ]
    wire, lag_s = wires(job)["all_reduce"], _usual_lag(job, old)
    for number, bucket in enumerate(packed):
        size = sum(job.ranks[0].gradients[place].bytes for place in bucket)
        after = {rank.rank: launches[rank.rank][number] for rank in job.ranks}
        exchanges.append(JobExchange("all_reduce", size, after, _seconds(job, old, wire, size), lag_s))
    return replace(job, ranks=tuple(ranks), exchanges=tuple(exchanges))


def buckets_of(job: TracedJob) -> tuple[int, ...]:
    """Places of the exchanges that carry gradients; ``CdmppError`` where the job is not data parallel."""
    found = tuple(
        place
        for place, one in enumerate(job.exchanges)
        if one.kind == "all_reduce" and all(_in_backward(job.rank(r), after) for r, after in one.after.items())
    )
    carried = sum(job.exchanges[place].bytes for place in found)
    wanted = {sum(one.bytes for one in rank.gradients) for rank in job.ranks}
    if not found or wanted != {carried} or len({len(rank.gradients) for rank in job.ranks}) > 1:
        raise CdmppError(
            f"buckets can only be changed in a job of DistributedDataParallel: its all-reduces in the backward pass "
            f"carry {carried} bytes, its gradients have {', '.join(map(str, sorted(wanted)))}"
        )
    return found


def _in_backward(rank: JobRank, place: int) -> bool:
    return place >= 0 and rank.ops[place].phase == "backward"


def _packed(sizes: Sequence[int], limits: Sequence[int]) -> list[list[int]]:
    packed, filled = [list[int]()], 0
    for place, size in enumerate(sizes):
        if filled >= limits[min(len(packed), len(limits)) - 1]:
            packed.append([])
            filled = 0
        packed[-1].append(place)
        filled += size
    return packed


def _seconds(job: TracedJob, old: Sequence[int], wire: Wire, size: int) -> float:
    """A bucket that was there before keeps its time."""
    same = [job.exchanges[place].wire_s for place in old if job.exchanges[place].bytes == size]
    return statistics.median(same) if same else wire.at(size)


def _usual_lag(job: TracedJob, old: Sequence[int]) -> dict[int, float]:
    return {
        rank.rank: statistics.median([job.exchanges[place].lag_s[rank.rank] for place in old]) for rank in job.ranks
    }


def _repacked(
    rank: JobRank, job: TracedJob, old: Sequence[int], packed: Sequence[Sequence[int]], renamed: dict[int, int]
) -> tuple[JobRank, dict[int, int], list[int]]:
    """The rank with launches and waits of the new buckets; old place -> new place; places of the launches."""
    calls = {job.exchanges[place].after[rank.rank] for place in old}
    calls = {place for place in calls if rank.ops[place].name.startswith(_LAUNCH)}
    call = _usual_call([rank.ops[place] for place in sorted(calls)])
    full: dict[int, list[int]] = {}
    for number, bucket in enumerate(packed):
        full.setdefault(max(rank.gradients[place].after for place in bucket), []).append(number)
    waits = _waits(rank, set(old), packed)
    ops: list[JobOp] = []
    moved, launched = {-1: -1}, [-1] * len(packed)
    for place, op in enumerate(rank.ops):
        others = tuple(renamed[number] for number in op.waits if number in renamed)
        new = tuple(len(renamed) + number for number in waits.get(place, ()))
        if place in calls:
            moved[place] = len(ops) - 1
        else:
            moved[place] = len(ops)
            ops.append(replace(op, waits=others + new))
        for number in full.get(place, ()):
            if call is not None:
                ops.append(call)
            launched[number] = len(ops) - 1
    gradients = tuple(JobGradient(one.bytes, moved[one.after]) for one in rank.gradients)
    return replace(rank, ops=tuple(ops), gradients=gradients), moved, launched


def _usual_call(calls: Sequence[JobOp]) -> JobOp | None:
    if not calls:
        return None
    took, gap = (statistics.median(values) for values in zip(*((c.duration_s, c.gap_s) for c in calls), strict=True))
    return replace(calls[0], duration_s=took, gap_s=gap, waits=())


def _waits(rank: JobRank, old: set[int], packed: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Place of an op -> new buckets that it waits for: before their copies, or all where the first was waited for."""
    first = min((place for place, op in enumerate(rank.ops) if old & set(op.waits)), default=None)
    if first is None:
        return {}
    copies = [place for place, op in enumerate(rank.ops) if op.name.endswith(_COPY)]
    if len(copies) != len(rank.gradients):
        return {first: list(range(len(packed)))}
    found, copied = {}, 0
    for number, bucket in enumerate(packed):
        found[copies[copied - 1] + 1 if copied else first] = [number]
        copied += len(bucket)
    return found
