"""JobJudge: plans for a traced job of DistributedDataParallel, by replay of what was traced."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from cdmpp.plans.judge import Choices, Worth
from cdmpp.plans.plan import DEFAULT_BUCKETS, Plan
from cdmpp.plans.search import search
from cdmpp.plans.search_result import SearchResult
from cdmpp.simulate import Span
from cdmpp.trace.buckets import buckets_of, with_buckets
from cdmpp.trace.job import JobOp, JobRank, TracedJob
from cdmpp.trace.replay import apart, replay

_COPY = "copy_bucket_to_grad"
_CALL = "c10d::allreduce"
_ELEMENTWISE = frozenset(
    f"aten::{name}"
    for name in (
        "add", "add_", "mul", "mul_", "sub_", "div", "div_", "sqrt", "lerp_", "addcmul_", "addcdiv_", "neg", "pow",
    )
)  # fmt: skip
"""What the updates of SGD, Adam and AdamW call a parameter."""


@dataclass(frozen=True)
class JobJudge:
    """Replays of the changed job. ``CdmppError`` where it is not data parallel."""

    job: TracedJob
    default: Plan = Plan()
    """Settings under which it was traced."""
    _replayed: dict[Plan, Worth] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        buckets_of(self.job)

    @property
    def choices(self) -> Choices:
        """What may be set."""
        ranks = self.job.ranks
        copies = any(op.name.endswith(_COPY) for rank in ranks for op in rank.ops)
        size = sum(one.bytes for one in ranks[0].gradients)
        view = "compute" if copies and not self.default.bucket_view else ""
        fuse = all(len(_updates(rank)) > 1 for rank in ranks) and not self.default.fused_update
        return Choices(len(ranks), size, (), view, fuse, self.default.micro_steps == 1)

    @property
    def assumed(self) -> tuple[str, ...]:
        """What holds for all plans."""
        return ("a plan is judged by replay of the traced job with its settings changed: memory is not told",)

    def worth(self, plan: Plan) -> Worth:
        """Seconds and the longest chain; each plan is replayed once."""
        if plan not in self._replayed:
            made = replay(self._changed(plan))
            path_s: dict[str, float] = {}
            shown = {span.task.key for span in made.last_step}
            for span in made.timeline.critical_path:
                if span.task.key in shown:
                    cause = _cause(span)
                    path_s[cause] = path_s.get(cause, 0.0) + span.end_s - span.start_s
            self._replayed[plan] = Worth(made.step_s, None, path_s, plan.micro_steps)
        return self._replayed[plan]

    def peak_bytes(self, plan: Plan) -> int | None:
        """Not known from a trace."""
        return None

    def _changed(self, plan: Plan) -> TracedJob:
        job, default = apart(self.job), self.default
        if plan.fused_update and not default.fused_update:
            job = _each(job, _fused)
        if plan.bucket_view and not default.bucket_view:
            job = _each(job, _uncopied)
        job = with_buckets(job, plan.bucket_bytes)  # of the default too, so that all plans are changed alike
        return (
            job if plan.micro_steps == default.micro_steps else _each(job, lambda rank: _again(rank, plan.micro_steps))
        )


def optimise_job(job: TracedJob, most_micro_steps: int = 1, optimizer: str = "") -> SearchResult:
    """The best plan for a traced job; as of ``search``. A trace does not tell the class of the optimizer."""
    return search(JobJudge(job, traced_plan(job)), None, most_micro_steps, optimizer)


def traced_plan(job: TracedJob) -> Plan:
    """The settings under which it was traced, as far as its exchanges tell them.

    ``CdmppError`` where it is not data parallel.
    """
    sent = [job.exchanges[place].bytes for place in buckets_of(job)]
    default = with_buckets(job, DEFAULT_BUCKETS)
    is_default = sent == [default.exchanges[place].bytes for place in buckets_of(default)]
    names = [op.name for rank in job.ranks for op in rank.ops]
    return Plan(
        bucket_bytes=DEFAULT_BUCKETS if is_default else tuple(sent),
        bucket_view=not any(name.endswith(_COPY) for name in names),
        fused_update=any("_fused_" in name for name in names),
    )


def _cause(span: Span) -> str:
    kind = span.task.label.partition(":")[0]
    if "/exchange" in span.task.key or kind == "arrival":
        return "communication"
    return {"gap": "host", "update": "update"}.get(kind, "compute")


def _each(job: TracedJob, change: Callable[[JobRank], tuple[JobRank, dict[int, int]]]) -> TracedJob:
    """``change`` gives a rank and where each of its ops went."""
    made = {rank.rank: change(rank) for rank in job.ranks}
    exchanges = tuple(
        replace(one, after={rank: made[rank][1].get(place, place) for rank, place in one.after.items()})
        for one in job.exchanges
    )
    return replace(job, ranks=tuple(rank for rank, _ in made.values()), exchanges=exchanges)


def _uncopied(rank: JobRank) -> tuple[JobRank, dict[int, int]]:
    """Copies take no time. They stay, as the places where buckets are waited for one after the other."""
    ops = (replace(op, duration_s=0.0, gap_s=0.0) if op.name.endswith(_COPY) else op for op in rank.ops)
    return replace(rank, ops=tuple(ops)), {}


def _without(rank: JobRank, left_out: Collection[int]) -> tuple[JobRank, dict[int, int]]:
    """What an op waited for, the next one that stays waits for; what came after it, comes after the one before."""
    ops, moved, waits = list[JobOp](), dict[int, int](), tuple[int, ...]()
    for place, op in enumerate(rank.ops):
        waits += op.waits
        if place not in left_out:
            ops.append(replace(op, waits=tuple(dict.fromkeys(waits))))
            waits = ()
        moved[place] = len(ops) - 1
    gradients = tuple(replace(one, after=moved[one.after]) for one in rank.gradients)
    return replace(rank, ops=tuple(ops), gradients=gradients), moved


def _updates(rank: JobRank) -> list[int]:
    """Places of the updates of single parameters that wait for nothing."""
    return [
        place
        for place, op in enumerate(rank.ops)
        if op.phase == "update" and op.name in _ELEMENTWISE and (not op.waits)
    ]


def _fused(rank: JobRank) -> tuple[JobRank, dict[int, int]]:
    """The last of the updates takes as long as all, and starts after one pause."""
    updates = _updates(rank)
    took_s = sum(rank.ops[place].duration_s for place in updates)
    last = replace(rank.ops[updates[-1]], name="update of all", duration_s=took_s, gap_s=rank.ops[updates[0]].gap_s)
    ops = tuple(last if place == updates[-1] else op for place, op in enumerate(rank.ops))
    return _without(replace(rank, ops=ops), set(updates[:-1]))


def _again(rank: JobRank, count: int) -> tuple[JobRank, dict[int, int]]:
    """The passes of ``count - 1`` batches before, which exchange nothing."""
    passes = [
        replace(op, waits=())
        for op in rank.ops
        if op.phase != "update" and not op.name.startswith(_CALL) and not op.name.endswith(_COPY)
    ]
    before = tuple(passes) * (count - 1)
    moved = {place: place + len(before) for place in range(len(rank.ops))}
    gradients = tuple(replace(one, after=moved[one.after]) for one in rank.gradients)
    return replace(rank, ops=(*before, *rank.ops), gradients=gradients), moved
