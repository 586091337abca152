"""Changed: what ranks compute under the settings of a plan that are no strategies."""

from __future__ import annotations

from cdmpp.devices.sheet import nearest
from cdmpp.errors import CdmppError
from cdmpp.plans.plan import Plan
from cdmpp.steps.replay import contention_free
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.fuse_update import can_fuse_update, fuse_update
from cdmpp.steps.transforms.recompute import can_recompute, recompute


def one_batch(graph: StepGraph, plan: Plan) -> StepGraph:
    """Recompute modules and fuse the update; ``CdmppError`` for modules that cannot be recomputed."""
    known = [module.name for module in can_recompute(graph.ranks[0])]
    if unknown := [name for name in plan.recompute if name not in known]:
        raise CdmppError(f"plan.recompute names {unknown[0]!r}, no module of this step; {nearest(unknown[0], known)}")
    graph = recompute(contention_free(graph), plan.recompute)
    return fuse_update(graph) if plan.update == "fused" and can_fuse_update(graph) else graph
