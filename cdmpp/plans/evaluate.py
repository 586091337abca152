"""Evaluate: the cost of a plan for a step, predicted or traced, by replay or by closed form."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError
from cdmpp.plans.changed import one_batch, with_own_names
from cdmpp.plans.cost import Cost, by_cause
from cdmpp.plans.lower import lower_work
from cdmpp.plans.memory import Memory
from cdmpp.plans.plan import Plan
from cdmpp.plans.search_space import SearchSpace
from cdmpp.plans.sources.source import RankWork
from cdmpp.platform.limits import check_choice
from cdmpp.steps.bounds import computed_s, exchanged_s
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.accumulate import accumulate
from cdmpp.steps.transforms.fold import fold
from cdmpp.steps.transforms.fuse_update import can_fuse_update
from cdmpp.steps.transforms.merge_ops import merge_ops
from cdmpp.steps.transforms.recompute import can_recompute

METHODS = ("replay", "closed_form")


@dataclass(frozen=True)
class Evaluator:
    """It finds the costs of all plans of one step; each plan is evaluated once."""

    graph: StepGraph
    """The ops of each rank, and the exchanges of a traced step."""
    topology: Topology | None
    """The links that carry the exchanges; None for a traced step, whose exchanges were measured."""
    default: Plan
    """Settings that nobody chose, or under which the step was traced."""
    memory: Memory | None = None
    """The memory of a rank; None if unknown, so that no limit can be kept."""
    method: str = "replay"
    """One of ``METHODS``. By closed form, communication is hidden behind computing as far as the strategy overlaps."""
    of: str = "predicted kernels"
    """The ops of the step are these, as ``StepSource.of`` says it."""
    _costs: dict[Plan, Cost] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)

    @property
    def space(self) -> SearchSpace:
        """These settings may be changed."""
        modules = tuple(module.name for module in can_recompute(self.graph.ranks[0]))
        can_accumulate = self.default.strategy.can_accumulate
        return SearchSpace(self.graph, modules, can_fuse_update(self.graph), can_accumulate)

    @property
    def warnings(self) -> tuple[str, ...]:
        """These warnings hold for every cost, a sentence each."""
        by = "replay" if self.method == "replay" else "closed form"
        if self.topology is None:
            return (f"the cost of a plan is known by {by} of the traced step with other settings; memory is unknown",)
        found = [f"the cost of a plan is known by {by} of {self.of}: no step under it was run"]
        if self.memory is not None:
            found.append("memory is an estimate: the buffers of the back end and gaps of the allocator are unknown")
        return tuple(found)

    def evaluate(self, plan: Plan) -> Cost:
        """Find the cost of a plan, as the function ``evaluate`` does."""
        if plan not in self._costs:
            self._costs[plan] = evaluate(plan, self.graph, self.topology, self.memory, self.method)
        return self._costs[plan]

    def least_s(self, plan: Plan, cause: str) -> float:
        """Return seconds below which no step is that differs from a plan only in what shortens ``cause``; 0: unknown.

        One replay for a bound saves those of all plans that a proposal leads to.
        """
        return 0.0

    def peak_bytes(self, plan: Plan) -> int | None:
        """Return the peak bytes of its cost, without a replay."""
        return None if self.memory is None else self.memory.peak_bytes(plan)


def evaluate(
    plan: Plan, graph: StepGraph, topology: Topology | None, memory: Memory | None = None, method: str = "replay"
) -> Cost:
    """Find the cost of a plan.

    Args:
        plan: all settings.
        graph: what each rank computes, and, of a traced step, what ranks exchanged.
        topology: what carries the exchanges; None where they were measured.
        memory: what a rank holds; None: unknown.
        method: one of ``METHODS``.

    Raises:
        CdmppError: a plan for another number of ranks, or with modules that the step does not have; a traced step that
            the strategy cannot change; a closed form without a topology.
    """
    plan = with_own_names(plan, graph.ranks[0])
    if plan.devices or plan.shares:
        raise CdmppError(
            "the plan names devices, or shares of the batch, and the step is that of one device: replay_plan replays "
            "it from a source with all devices"
        )
    if plan.offload:
        raise CdmppError(
            f"the plan leaves {' and '.join(plan.offload)} on the host, and settings are searched for plans that leave "
            "nothing there: replay_plan, or `cdmpp step --plan`, replays it"
        )
    if plan.ranks != len(graph.ranks):
        raise CdmppError(f"the plan is for {plan.ranks} ranks, and the step has {len(graph.ranks)}")
    step = _planned(plan, graph, topology)
    if method == "replay":
        replayed = replay(merge_ops(step), topology, synchrony=plan.synchrony)
        iteration_s, critical_s = replayed.step_s, by_cause(replayed.critical_s)
    else:
        iteration_s, critical_s = _closed_form(step, plan.strategy.overlap, topology)
    peak_bytes = None if memory is None else memory.peak_bytes(plan)
    return Cost(iteration_s, peak_bytes, critical_s, plan.gradient_accumulation_steps)


def changed(graph: StepGraph, plan: Plan) -> StepGraph:
    """Change the step to what ranks compute under a plan; ``CdmppError`` for modules that cannot be recomputed."""
    if plan.model_parallel:
        raise CdmppError(f"{plan.model_parallel[0].title} divides the model, and this step was made of a whole one")
    if len(several := plan.degrees.beyond_one()) > 1:
        raise CdmppError(f"a step of one device is not replayed along {' and '.join(several)} at the same time yet")
    return accumulate(one_batch(graph, plan), plan.gradient_accumulation_steps)


def _planned(plan: Plan, graph: StepGraph, topology: Topology | None) -> StepGraph:
    """The step under a plan, with its exchanges, of one rank in place of those that are alike."""
    several = len(plan.degrees.beyond_one()) > 1 and not plan.model_parallel
    if topology is not None and several and all(rank.ops == graph.ranks[0].ops for rank in graph.ranks):
        return lower_work(RankWork(graph.ranks[0]), plan, topology).graph
    strategy = plan.strategy if topology is None else plan.strategy.on_backend(topology.backend)
    return fold(strategy.apply(changed(graph, plan)))


def _closed_form(step: StepGraph, overlap: bool, topology: Topology | None) -> tuple[float, dict[str, float]]:
    if topology is None:
        raise CdmppError("the closed form needs a topology: take the replay of a traced step")
    busy_s, (least_s, most_s) = computed_s(step, topology), exchanged_s(step, topology)
    exposed_s = max(0.0, least_s - busy_s) if overlap else most_s
    return busy_s + exposed_s, {"communication": exposed_s, "compute": busy_s}
