"""WorkEvaluator: the cost of plans for ranks whose work is predicted, on a topology."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cdmpp.collectives.topology import Topology
from cdmpp.plans.cost import Cost, by_cause
from cdmpp.plans.memory import Memory
from cdmpp.plans.plan import Plan
from cdmpp.plans.search_space import SearchSpace
from cdmpp.platform.limits import check_choice
from cdmpp.steps.bounds import communication_s, compute_s
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.strategy import Strategy
from cdmpp.steps.strategy_replay import replay_strategy
from cdmpp.steps.transforms.accumulate import accumulate
from cdmpp.steps.transforms.fuse_update import can_fuse_update, fuse_update
from cdmpp.steps.transforms.recompute import can_recompute, recompute
from cdmpp.steps.transforms.scale import scale_ranks, shard_update

METHODS = ("replay", "closed_form")


@dataclass(frozen=True)
class WorkEvaluator:
    """Costs by replay of the changed step, or by closed form."""

    graph: StepGraph
    """What each rank computes."""
    topology: Topology
    default: Plan
    memory: Memory | None = None
    """What a rank holds; None: unknown, so that no limit can be kept."""
    method: str = "replay"
    """One of ``METHODS``. By closed form, communication is hidden behind computing as far as the strategy overlaps."""
    _costs: dict[Plan, Cost] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)

    @property
    def space(self) -> SearchSpace:
        """What may be set."""
        first = self.graph.ranks[0]
        return SearchSpace(
            len(self.graph.ranks),
            first.gradient_bytes,
            tuple(module.name for module in can_recompute(first)),
            can_fuse_update=can_fuse_update(self.graph),
            can_accumulate=self.default.strategy.can_accumulate,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What holds for every cost."""
        by = "replay" if self.method == "replay" else "closed form"
        found = [f"the cost of a plan is known by {by} of predicted kernels: no step under it was run"]
        if self.memory is not None:
            found.append("memory is an estimate: the buffers of the back end and of the allocator are unknown")
        return tuple(found)

    def evaluate(self, plan: Plan) -> Cost:
        """Seconds, memory, and the critical path; each plan is evaluated once."""
        if plan not in self._costs:
            strategy = plan.strategy.on_backend(self.topology.backend)
            by = _by_replay if self.method == "replay" else _by_closed_form
            iteration_s, critical_s = by(changed(self.graph, plan), strategy, self.topology)
            steps = plan.gradient_accumulation_steps
            self._costs[plan] = Cost(iteration_s, self.peak_bytes(plan), critical_s, steps)
        return self._costs[plan]

    def peak_bytes(self, plan: Plan) -> int | None:
        """Peak bytes on the rank that needs the most."""
        return None if self.memory is None else self.memory.peak_bytes(plan)


def changed(graph: StepGraph, plan: Plan) -> StepGraph:
    """What ranks compute under a plan."""
    graph = recompute(graph, plan.recompute)
    if plan.update == "fused":
        graph = fuse_update(graph)
    return accumulate(graph, plan.gradient_accumulation_steps)


def _by_replay(graph: StepGraph, strategy: Strategy, topology: Topology) -> tuple[float, dict[str, float]]:
    replayed = replay_strategy(*_stand_in(graph, strategy, topology))
    return replayed.iteration_s, by_cause(replayed.critical_s)


def _by_closed_form(graph: StepGraph, strategy: Strategy, topology: Topology) -> tuple[float, dict[str, float]]:
    computed_s, exchanged_s = compute_s(graph, strategy), communication_s(graph, strategy, topology)
    exposed_s = max(0.0, exchanged_s - computed_s) if strategy.overlap else exchanged_s
    return computed_s + exposed_s, {"communication": exposed_s, "compute": computed_s}


def _stand_in(graph: StepGraph, strategy: Strategy, topology: Topology) -> tuple[StepGraph, Strategy, Topology]:
    """Two ranks in place of many equal ones, whose collectives take what those of all take: faster to replay."""
    ranks, first = len(graph.ranks), graph.ranks[0]
    if ranks < 3 or any(replace(rank, rank=0) != first for rank in graph.ranks[1:]):
        return graph, strategy, topology
    if any(one.kind == "push_pull" for one in strategy.exchanges(graph)):
        return graph, strategy, topology
    shards = strategy.shards(ranks)
    (sharded,) = shard_update(StepGraph((first,)), shards).ranks
    few = replace(
        topology, ranks=2, nodes=1, adapters=1,
        whole=lambda collective: topology.whole(replace(collective, ranks=ranks)),
    )  # fmt: skip
    return scale_ranks(StepGraph((replace(sharded, update_shards=2 if shards > 1 else 1),)), 2), strategy, few
