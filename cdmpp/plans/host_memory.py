"""Host memory: the copies and the update of a rank that leaves something in the memory of its node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cdmpp.collectives.host import Host
from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError
from cdmpp.plans.host_update import traffic_bytes
from cdmpp.plans.plan import ACTIVATIONS, Plan
from cdmpp.plans.shared_parameters import rank_bytes_of
from cdmpp.plans.sources.source import RankWork
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import HOST_COPY, StepGraph
from cdmpp.steps.transforms.edit import edited_rank
from cdmpp.steps.transforms.offload import parameters_out
from cdmpp.steps.transforms.offload_results import BlockResults

THREADS = (
    "the host updates with all processors of a node: torchrun leaves each rank one thread unless OMP_NUM_THREADS or "
    "torch.set_num_threads says more"
)
"""A warning of every plan whose parameters lie on the host."""


def host_of(plan: Plan, topology: Topology) -> Host:
    """Return the host of each node; ``CdmppError`` where nothing describes it."""
    if topology.host is None:
        raise CdmppError(
            f"plan.offload names {' and '.join(plan.offload)}, and nothing describes the host of {topology.name}: name "
            "a cluster whose file has `host`, such as dgx-h100"
        )
    return topology.host


def with_parameters_out(
    graph: StepGraph, numbers: Iterable[int], work: RankWork, plan: Plan, topology: Topology
) -> StepGraph:
    """Add the copies of a plan whose parameters lie on the host, and let the host update them.

    Args:
        graph: of the job.
        numbers: places of the exchanges of the replicas in it.
        work: of a rank.
        plan: all settings.
        topology: the links of the job.

    Raises:
        CdmppError: a host that nothing describes, an update that is not known there, or a source that says neither.
    """
    if work.memory is None or work.update is None:
        raise CdmppError("plan.offload names parameters, and the source says no optimizer: give a network")
    host, modules = host_of(plan, topology), work.rank.modules
    sizes = {name: getattr(plan.degrees, name) for name in plan.replicating}
    own = rank_bytes_of(plan.strategy, work.memory, work.rank, sizes)
    traffic = traffic_bytes(work.update, own.state_bytes, plan.update == "fused")
    update_s = host.passed_s(traffic, topology.ranks // topology.nodes)
    kept = kept_gradient = 1.0  # a rank copies what it keeps, and ranks gather what they compute with
    if work.is_cast:
        kept = work.memory.parameter_bytes / sum(one.bytes for one in modules)
        kept_gradient = work.memory.gradient_bytes / sum(one.scattered_bytes(1) for one in modules)
    last = "all_reduce" if plan.strategy.name == "hsdp" and plan.degrees.dp_replicate > 1 else "reduce_scatter"

    def part(one: Exchange) -> float:
        return one.bytes if one.kind == "all_reduce" else one.bytes / len(one.participants)

    gathers, sums = dict[int, float](), dict[int, float]()
    for number in numbers:
        one = graph.exchanges[number]
        if one.kind == "all_gather" and not one.group:
            gathers[number] = host.copy_s(kept * part(one))
        elif one.kind == last and not one.group:
            sums[number] = host.copy_s(kept_gradient * part(one))
    return parameters_out(graph, gathers, sums, {rank.rank: update_s for rank in graph.ranks})


def with_results_out(work: RankWork, plan: Plan, topology: Topology) -> RankWork:
    """Return the work of a rank with the copies of a plan whose activations lie on the host; of another one as it is.

    Args:
        work: of a rank, with its copies or without.
        plan: all settings.
        topology: the links of the job.

    Raises:
        CdmppError: a host that nothing describes, or a network without blocks that follow each other.
    """
    if ACTIVATIONS not in plan.offload or any(op.kind == HOST_COPY for op in work.rank.ops):
        return work
    if any(op.is_recomputed for op in work.rank.ops):
        raise CdmppError("plan.offload names activations, and the network makes them again: leave out --recompute")
    host = host_of(plan, topology)
    edit = BlockResults(work.rank).edit(host.copy_s)
    exchanges = tuple(
        replace(one, after=edit.end(one.after), before=tuple(map(edit.begin, one.before))) for one in work.exchanges
    )
    times = dict(zip(edit.after, work.dispatch_s, strict=False))
    dispatch_s = tuple(times.get(place, 0.0) for place in range(len(edit.ops))) if times else ()
    memory = None if work.memory is None else replace(work.memory, live_bytes=0)  # it is of all results on the device
    return replace(work, rank=edited_rank(work.rank, edit), exchanges=exchanges, memory=memory, dispatch_s=dispatch_s)


def results_bytes(work: RankWork) -> int:
    """Return what a rank leaves on the host of the results of one micro-batch; ``work`` with its copies."""
    return sum(op.output_bytes for op in work.rank.ops if op.kind == HOST_COPY)
