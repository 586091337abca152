"""A traced step in; the plan under which it ran, or the best plan for it, out."""

from __future__ import annotations

from cdmpp.errors import CdmppError
from cdmpp.plans.evaluate import Evaluator
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.search import search
from cdmpp.plans.search_result import SearchResult
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.steps.replay import contention_free
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.fuse_update import is_update_fused


def optimize_traced(graph: StepGraph, most_accumulation_steps: int = 1, optimizer: str = "") -> SearchResult:
    """Find the best plan for a traced step by ``search``. A trace does not say which optimizer it has."""
    plan, graph = traced_plan(graph), contention_free(graph)  # once, in place of in each evaluation
    return search(Evaluator(graph, None, plan), None, most_accumulation_steps, optimizer)


def traced_plan(graph: StepGraph) -> Plan:
    """Return the plan under which a step was traced, by the first strategy that recognizes its exchanges.

    Raises:
        CdmppError: no strategy does; it says why.
    """
    reasons = list[str]()
    for kind in STRATEGIES:
        if kind.divides_model:
            continue
        try:
            strategy = kind.from_trace(graph)
        except CdmppError as error:
            reasons.append(str(error))
            continue
        return plan_on(len(graph.ranks), strategy, update="fused" if is_update_fused(graph) else "separate")
    raise CdmppError("; ".join(reasons))
