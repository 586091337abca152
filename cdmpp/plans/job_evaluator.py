"""JobEvaluator: the cost of plans for a traced job of DistributedDataParallel, by replay of what was traced."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from cdmpp.errors import CdmppError
from cdmpp.plans.cost import Cost
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.search import search
from cdmpp.plans.search_result import SearchResult
from cdmpp.plans.search_space import SearchSpace
from cdmpp.plans.strategies.ddp import DDP
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
class JobEvaluator:
    """Costs by replay of the changed job. ``CdmppError`` where it is not data parallel."""

    job: TracedJob
    default: Plan
    """Settings under which it was traced."""
    _costs: dict[Plan, Cost] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        buckets_of(self.job)

    @property
    def space(self) -> SearchSpace:
        """What may be set."""
        ranks = self.job.ranks
        copies = any(op.name.endswith(_COPY) for rank in ranks for op in rank.ops)
        fuse = all(len(_updates(rank)) > 1 for rank in ranks) and self.default.update != "fused"
        size = sum(one.bytes for one in ranks[0].gradients)
        return SearchSpace(len(ranks), size, (), copies and not _ddp(self.default).gradient_as_bucket_view, fuse, True)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What holds for every cost."""
        return ("the cost of a plan is known by replay of the traced job with its settings changed; memory is unknown",)

    def evaluate(self, plan: Plan) -> Cost:
        """Seconds and the critical path; each plan is replayed once."""
        if plan not in self._costs:
            replayed = replay(self._changed(plan))
            critical_s: dict[str, float] = {}
            shown = {span.task.key for span in replayed.last_step}
            for span in replayed.timeline.critical_path:
                if span.task.key in shown:
                    cause = _cause(span)
                    critical_s[cause] = critical_s.get(cause, 0.0) + span.end_s - span.start_s
            self._costs[plan] = Cost(replayed.step_s, None, critical_s, plan.gradient_accumulation_steps)
        return self._costs[plan]

    def peak_bytes(self, plan: Plan) -> int | None:
        """A trace does not say it."""
        return None

    def _changed(self, plan: Plan) -> TracedJob:
        job, strategy = apart(self.job), _ddp(plan)
        if plan.update == "fused" and self.default.update != "fused":
            job = _each(job, _fused)
        if strategy.gradient_as_bucket_view and not _ddp(self.default).gradient_as_bucket_view:
            job = _each(job, _uncopied)
        job = with_buckets(job, strategy.bucket_bytes)  # of the default too, so that all plans are changed alike
        steps = plan.gradient_accumulation_steps
        return job if steps == 1 else _each(job, lambda rank: _again(rank, steps))


def optimize_job(job: TracedJob, most_accumulation_steps: int = 1, optimizer: str = "") -> SearchResult:
    """The best plan for a traced job, as ``search`` finds it. A trace does not say which optimizer it has."""
    return search(JobEvaluator(job, traced_plan(job)), None, most_accumulation_steps, optimizer)


def traced_plan(job: TracedJob) -> Plan:
    """The settings under which it was traced, as far as its exchanges show them.

    ``CdmppError`` where it is not data parallel.
    """
    sent = [job.exchanges[place].bytes for place in buckets_of(job)]
    default = with_buckets(job, DDP().bucket_bytes)
    is_default = sent == [default.exchanges[place].bytes for place in buckets_of(default)]
    names = [op.name for rank in job.ranks for op in rank.ops]
    strategy = DDP(
        bucket_bytes=DDP().bucket_bytes if is_default else tuple(sent),
        gradient_as_bucket_view=not any(name.endswith(_COPY) for name in names),
    )
    return plan_on(len(job.ranks), strategy, update="fused" if any("_fused_" in name for name in names) else "separate")


def _ddp(plan: Plan) -> DDP:
    if not isinstance(plan.strategy, DDP):
        raise CdmppError(f"a traced job of DistributedDataParallel cannot have a plan of {plan.strategy.name}")
    return plan.strategy


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
