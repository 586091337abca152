"""Exchanges of a strategy on every group of ranks that has one of its own."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.errors import CdmppError
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.plan import Plan
from cdmpp.plans.shared_parameters import exchanges_of
from cdmpp.steps.derived import derived
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import StepGraph


def replica_exchanges(graph: StepGraph, plan: Plan, mesh: Mesh, places: Sequence[int]) -> tuple[Exchange, ...]:
    """List what the strategy of the replicas exchanges, stage after stage.

    Args:
        graph: all ranks of the job, or one of each set of ranks that are alike.
        plan: its strategy, and the degrees along which ranks share parameters.
        mesh: the numbers of the ranks.
        places: rank of the job -> its place in the graph.

    Raises:
        CdmppError: as ``Strategy.exchanges``.
    """
    sizes = {name: getattr(plan.degrees, name) for name in plan.replicating}
    strategy = plan.strategy.in_pipeline() if plan.degrees.pp > 1 else plan.strategy
    found: list[Exchange] = []
    for stage in sorted({mesh.place(rank, "pp") for rank in range(plan.ranks)}):
        own = sorted({places[rank] for rank in range(plan.ranks) if mesh.place(rank, "pp") == stage})
        part = derived(
            graph, ranks=tuple(derived(graph.ranks[place], rank=i) for i, place in enumerate(own)), exchanges=()
        )
        for one in exchanges_of(strategy, part, sizes) if plan.degrees.size(*sizes) > 1 else ():
            if one.kind == "push_pull" and plan.model_parallel:
                raise CdmppError(
                    f"{plan.strategy.name} does not go with {plan.model_parallel[0].name}: take ddp or fsdp"
                )
            found += on_groups(_renumbered(one, own), one.along or plan.replicating, mesh, places)
    return tuple(found)


def on_groups(one: Exchange, along: Sequence[str], mesh: Mesh, places: Sequence[int]) -> list[Exchange]:
    """Give each group along ``along`` an exchange of its own; groups whose ranks are alike have it once."""
    found = list[Exchange]()
    for own, group in mesh.unlike_groups(tuple(along), tuple(places), tuple(one.after)):
        after = {rank: one.after[rank] for rank in own}
        before = {rank: one.before[rank] for rank in own if rank in one.before}
        members = () if one.kind == "push_pull" else group  # servers take all ranks of the graph
        found.append(derived(one, after=after, before=before, along=(), members=members))
    return found


def _renumbered(one: Exchange, ranks: Sequence[int]) -> Exchange:
    after = {ranks[i]: place for i, place in one.after.items()}
    return derived(one, after=after, before={ranks[i]: places for i, places in one.before.items()})
