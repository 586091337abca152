"""JobEvaluator: the cost of plans for a traced job of DistributedDataParallel, by replay of what was traced."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdmpp.errors import CdmppError
from cdmpp.plans.cost import Cost, by_cause
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.search import search
from cdmpp.plans.search_result import SearchResult
from cdmpp.plans.search_space import SearchSpace
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.steps.replay import contention_free, replay
from cdmpp.steps.step_graph import COPY, StepGraph
from cdmpp.steps.transforms.accumulate import accumulate
from cdmpp.steps.transforms.fuse_update import can_fuse_update, fuse_update
from cdmpp.steps.transforms.rebucket import gradient_exchanges, rebucket
from cdmpp.steps.transforms.view_gradients import view_gradients


@dataclass(frozen=True)
class JobEvaluator:
    """Costs by replay of the changed job. ``CdmppError`` where it is not data parallel."""

    graph: StepGraph
    default: Plan
    """Settings under which it was traced."""
    _costs: dict[Plan, Cost] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        gradient_exchanges(self.graph)

    @property
    def space(self) -> SearchSpace:
        """What may be set."""
        ranks = self.graph.ranks
        copies = any(op.kind == COPY for rank in ranks for op in rank.ops)
        fuse = can_fuse_update(self.graph) and self.default.update != "fused"
        view = copies and not _ddp(self.default).gradient_as_bucket_view
        return SearchSpace(len(ranks), ranks[0].gradient_bytes, (), view, fuse, True)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What holds for every cost."""
        return ("the cost of a plan is known by replay of the traced job with its settings changed; memory is unknown",)

    def evaluate(self, plan: Plan) -> Cost:
        """Seconds and the critical path; each plan is replayed once."""
        if plan not in self._costs:
            replayed = replay(self._changed(plan))
            critical_s = by_cause(replayed.critical_s)
            self._costs[plan] = Cost(replayed.step_s, None, critical_s, plan.gradient_accumulation_steps)
        return self._costs[plan]

    def peak_bytes(self, plan: Plan) -> int | None:
        """A trace does not say it."""
        return None

    def _changed(self, plan: Plan) -> StepGraph:
        graph, strategy = contention_free(self.graph), _ddp(plan)
        if plan.update == "fused" and self.default.update != "fused":
            graph = fuse_update(graph)
        if strategy.gradient_as_bucket_view and not _ddp(self.default).gradient_as_bucket_view:
            graph = view_gradients(graph)
        graph = rebucket(graph, strategy.bucket_bytes)  # of the default too, so that all plans are changed alike
        return accumulate(graph, plan.gradient_accumulation_steps)


def optimize_job(graph: StepGraph, most_accumulation_steps: int = 1, optimizer: str = "") -> SearchResult:
    """The best plan for a traced job, as ``search`` finds it. A trace does not say which optimizer it has."""
    return search(JobEvaluator(graph, traced_plan(graph)), None, most_accumulation_steps, optimizer)


def traced_plan(graph: StepGraph) -> Plan:
    """The settings under which it was traced, as far as its exchanges show them.

    ``CdmppError`` where it is not data parallel.
    """
    sent = [graph.exchanges[place].bytes for place in gradient_exchanges(graph)]
    default = rebucket(graph, DDP().bucket_bytes)
    is_default = sent == [default.exchanges[place].bytes for place in gradient_exchanges(default)]
    ops = [op for rank in graph.ranks for op in rank.ops]
    strategy = DDP(
        bucket_bytes=DDP().bucket_bytes if is_default else tuple(sent),
        gradient_as_bucket_view=not any(op.kind == COPY for op in ops),
    )
    is_fused = any("_fused_" in op.name for op in ops)
    return plan_on(len(graph.ranks), strategy, update="fused" if is_fused else "separate")


def _ddp(plan: Plan) -> DDP:
    if not isinstance(plan.strategy, DDP):
        raise CdmppError(f"a traced job of DistributedDataParallel cannot have a plan of {plan.strategy.name}")
    return plan.strategy
