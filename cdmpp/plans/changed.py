"""Changed: what ranks compute under the settings of a plan that are no strategies."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.devices.sheet import nearest
from cdmpp.errors import CdmppError
from cdmpp.plans.cut_places import WRAPPED
from cdmpp.plans.plan import Plan
from cdmpp.steps.replay import contention_free
from cdmpp.steps.step_graph import RankGraph, StepGraph
from cdmpp.steps.transforms.fuse_update import can_fuse_update, fuse_update
from cdmpp.steps.transforms.recompute import can_recompute, recompute


def with_own_names(plan: Plan, rank: RankGraph) -> Plan:
    """Name the modules to recompute as the step of a rank does.

    A plan may name them as the user's model does, without the prefix of the module that is around it for its loss.
    """
    known = {one.name for one in rank.modules}
    own = tuple(WRAPPED + one if one not in known and WRAPPED + one in known else one for one in plan.recompute)
    return plan if own == plan.recompute else replace(plan, recompute=own)


def one_batch(graph: StepGraph, plan: Plan) -> StepGraph:
    """Recompute modules and fuse the update; ``CdmppError`` for modules that cannot be recomputed."""
    plan = with_own_names(plan, graph.ranks[0])
    known = [module.name for module in can_recompute(graph.ranks[0])]
    if unknown := [name for name in plan.recompute if name not in known]:
        model = [one.removeprefix(WRAPPED) for one in known]  # as the user's model has them
        raise CdmppError(f"plan.recompute names {unknown[0]!r}, no module of this step; {nearest(unknown[0], model)}")
    graph = recompute(contention_free(graph), plan.recompute)
    return fuse_update(graph) if plan.update == "fused" and can_fuse_update(graph) else graph
