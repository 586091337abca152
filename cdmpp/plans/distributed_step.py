"""A predicted training step in; the same on several ranks, or the best plan for it, out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cdmpp import devices
from cdmpp.collectives.collective import RANKS
from cdmpp.collectives.topology import Topology
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, UsageError, some
from cdmpp.network.memory import memory_warning, warnings_of_shares
from cdmpp.network.precision import PRECISIONS
from cdmpp.network.training_prediction import StepPrediction
from cdmpp.network.update import update_of
from cdmpp.plans.changed import one_batch, with_own_names
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.device_copies import copies_on
from cdmpp.plans.evaluate import Evaluator
from cdmpp.plans.host_memory import with_results_out
from cdmpp.plans.lower import lower_work
from cdmpp.plans.memory import Memory
from cdmpp.plans.memory_answer import host_warnings
from cdmpp.plans.placement import global_batch_of, micro_batch_of, micro_batches_of, replicas_of
from cdmpp.plans.plan import ACCUMULATION, Plan, plan_on
from cdmpp.plans.plan_topology import plan_topology
from cdmpp.plans.rank_memory import heaviest_on
from cdmpp.plans.search import search
from cdmpp.plans.search_result import SearchResult
from cdmpp.plans.sources.source import SPLITS, RankWork, StepSource
from cdmpp.plans.sources.sustained import sustained
from cdmpp.plans.strategies import DEFAULT_STRATEGY
from cdmpp.platform.limits import Limits, checked
from cdmpp.steps.bounds import alone_s
from cdmpp.steps.exchange_tasks import check_granularity
from cdmpp.steps.from_prediction import graph_of
from cdmpp.steps.step_graph import RankGraph, StepGraph
from cdmpp.steps.step_replay import HeaviestRank, StepReplay
from cdmpp.steps.strategy import Strategy
from cdmpp.steps.strategy_replay import replay_exchanges
from cdmpp.steps.transforms.accumulate import accumulate
from cdmpp.steps.transforms.scale import scale_rank, scale_ranks

MEMORY = Limits(1, 2**50, "bytes")
"""Memory of a device."""
BATCH = Limits(1, 2**31, "examples")
_FEW_RANKS = 32
_SLOWEST = 1e6
"""The largest factor by which the device of a rank may be slower than the others."""


@checked(ranks=RANKS, global_batch=BATCH)
def replay_step(
    step: StepPrediction,
    *,
    ranks: int | None = None,
    cluster: str | None = None,
    link: str | None = None,
    strategy: str | Strategy | None = None,
    plan: Plan | None = None,
    backend: str | None = None,
    granularity: str = "collective",
    slow: Mapping[int, float] | None = None,
    global_batch: int | None = None,
) -> StepReplay:
    """Replay one training step on several devices, each with the batch of one. Needs no TVM.

    Args:
        step: the step on one device, as ``predict_step`` returned it: of the whole batch of a rank, or of one
            micro-batch where the plan has a pipeline.
        ranks: number of devices, from 1 up; may be left out where a plan says it.
        cluster: a name of ``conf/cluster``.
        link: a name of ``conf/interconnect``, in place of a cluster: all ranks have it.
        strategy: a name of ``STRATEGIES``, such as ``fsdp``, or a strategy with settings; None: ddp.
        plan: all settings, in place of ``strategy``.
        backend: what carries collectives; None: gloo on CPUs and to parameter servers, rccl on AMD's GPUs, else nccl.
        granularity: ``collective`` or ``ring step``, as ``replay`` takes it.
        slow: rank -> how many times as long its device takes, for those that are unlike the others.
        global_batch: examples of all devices in one step; None: as many as the step and the plan give. It must be so
            many.

    Raises:
        CdmppError: an unknown cluster, link or strategy; ranks that do not fit; another global batch.
    """
    can_grow, plan = plan is not None, plan_for(ranks, strategy, plan)
    topology = plan_topology(plan, step.prediction.device, cluster, link, backend, can_grow)
    check_granularity(granularity, plan.ranks)
    factors = check_slow(slow or {}, plan.ranks)
    if divided := [name for name in SPLITS if getattr(plan.degrees, name) > 1]:
        raise CdmppError(f"degrees.{divided[0]} above 1 divides operators, and this step has whole ones: replay_plan")
    device, batch = devices.get(step.prediction.device), step.step.batch
    precision = PRECISIONS.get(step.prediction.precision, PRECISIONS["fp32"])
    rank, slower = sustained(graph_of(step).ranks[0], device, precision)
    examples = global_batch_of(plan, batch * micro_batches_of(plan))
    if global_batch not in (None, examples):
        needed = micro_batch_of(plan, global_batch)
        raise CdmppError(
            f"global_batch is {global_batch}, and this step of {batch} examples makes one of {examples} under the "
            f"plan: predict the step at {needed} examples"
        )
    work = RankWork(
        rank, memory=step.step.memory, warnings=slower, copies=copies_on(device, precision),
        is_cast=bool(precision.sharded), update=update_of(step.step.optimizer),
    )  # fmt: skip
    replayed = _replayed(work, rank, plan, topology, granularity, factors, device, fold=False)
    replayed = replace(replayed, global_batch=examples)
    return replace(
        replayed, warnings=(*warnings_of_shares(step.prediction, device, step.step.peak_bytes), *replayed.warnings)
    )


@checked(batch=BATCH, global_batch=BATCH)
def replay_plan(
    source: StepSource,
    plan: Plan,
    batch: int | None = None,
    *,
    global_batch: int | None = None,
    device: str | Device,
    cluster: str | None = None,
    link: str | None = None,
    backend: str | None = None,
    granularity: str = "collective",
    slow: Mapping[int, float] | None = None,
) -> StepReplay:
    """Replay one training step under any plan, also where ranks divide the model.

    Ranks of a stage that are alike are replayed once where the job has more than 32 ranks.

    Args:
        source: what a rank runs at any micro-batch and split.
        plan: all settings. Where it names devices, ranks stand on these in place of ``device``.
        batch: examples of each replica, or of each group of ranks that divide a model; with gradient accumulation in
            each of its steps. A pipeline divides them into its micro-batches. None: they follow from ``global_batch``.
        global_batch: examples of all devices in one step, in place of ``batch``.
        device: of each rank.
        cluster: as of ``replay_step``, and so are ``link``, ``backend``, ``granularity`` and ``slow``.
        link: as there.
        backend: as there.
        granularity: as there.
        slow: as there.

    Raises:
        CdmppError: as ``replay_step``, ``lower`` and ``StepSource.work``.
    """
    if (batch is None) == (global_batch is None):
        raise UsageError("batch and global_batch: give one of them, the examples of one replica or those of all")
    if global_batch is None:
        global_batch = global_batch_of(plan, batch or 1)
    topology = plan_topology(plan, device, cluster, link, backend, can_grow=True)
    check_granularity(granularity, plan.ranks)
    factors = check_slow(slow or {}, plan.ranks)
    examples = micro_batch_of(plan, global_batch)
    source.prepare((examples,), (plan.degrees, ParallelDegrees()), plan.model_parallel)
    work, rank = source.work(examples, plan.degrees, plan.model_parallel), source.work(examples, ParallelDegrees()).rank
    fold = plan.ranks > _FEW_RANKS and not factors and granularity == "collective"
    described = None if plan.devices else devices.get(device) if isinstance(device, str) else device
    replayed = _replayed(work, rank, plan, topology, granularity, factors, described, fold)
    return replace(replayed, global_batch=global_batch)


def _replayed(
    work: RankWork, whole: RankGraph, plan: Plan, topology: Topology, granularity: str,
    factors: Mapping[int, float], device: Device | None, fold: bool,
) -> StepReplay:  # fmt: skip
    """Replay the work of a rank next to a ``whole`` rank, which runs all by itself."""
    plan = with_own_names(plan, whole)
    work = with_results_out(work, plan, topology)
    lowered = lower_work(work, plan, topology, fold)
    graph = lowered.graph
    for rank, factor in factors.items():
        graph = scale_rank(graph, rank, factor)
    alone = accumulate(one_batch(StepGraph((whole,)), plan), plan.gradient_accumulation_steps * micro_batches_of(plan))
    title = " + ".join(one.name for one in plan.strategies)
    replayed = replay_exchanges(graph, title, topology, alone_s(alone), granularity, plan.synchrony, replicas_of(plan))
    first = {place: rank for rank, place in reversed(list(enumerate(lowered.places)))}
    told = [f"each of ranks {some([*map(str, sorted(first.values()))], ', ', 8)} stands for others that do the same"]
    named = {name: devices.get(name) for name in plan.devices if name in devices.names()}
    named |= {} if device is None else {"": device}
    each = heaviest_on(work, plan, lowered, lambda name: name not in named or named[name].kind != "cpu")
    ranked = sorted(each.values(), key=lambda one: one[1].peak_bytes)
    held = HeaviestRank(ranked[-1][0], ranked[-1][1].by_size) if ranked else None
    full = [
        memory_warning(named[name], most.peak_bytes, f"rank {rank}")
        for name, (rank, most) in each.items()
        if name in named
    ]
    return replace(
        replayed,
        heaviest=held,
        shares=tuple(replace(one, rank=first[one.rank]) for one in replayed.shares),
        spans=tuple(replace(one, rank=first[one.rank]) for one in replayed.spans),
        warnings=(
            *filter(None, full),
            *host_warnings(work, plan, topology, lowered.stages),
            *lowered.warnings,
            *(told if len(first) < plan.ranks else ()),
            *replayed.warnings,
        ),
    )


@checked(ranks=RANKS, memory_limit_bytes=MEMORY, most_accumulation_steps=ACCUMULATION)
def optimize_step(
    step: StepPrediction,
    *,
    ranks: int | None = None,
    cluster: str | None = None,
    link: str | None = None,
    strategy: str | Strategy | None = None,
    plan: Plan | None = None,
    backend: str | None = None,
    memory_limit_bytes: int | None = None,
    most_accumulation_steps: int = 1,
    method: str = "replay",
) -> SearchResult:
    """Find the best plan for a training step on equal devices. Needs no TVM.

    Args:
        step: the step on one device, as ``predict_step`` returned it.
        ranks: as ``replay_step`` takes it, and so are ``cluster``, ``link`` and ``backend``.
        cluster: as there.
        link: as there.
        strategy: a name of ``STRATEGIES``, or a strategy; its kind is kept, its settings are searched; None: ddp.
        plan: where the search begins, in place of the defaults of ``strategy``.
        backend: as there.
        memory_limit_bytes: most bytes of each device; None: no limit.
        most_accumulation_steps: batches whose gradients may be added up; more than 1 multiplies the global batch.
        method: ``replay`` or ``closed_form``, as ``Evaluator`` takes it.

    Raises:
        InfeasiblePlanError: nothing fits into ``memory_limit_bytes``.
        CdmppError: as ``replay_step`` and ``search``.
    """
    plan = plan_for(ranks, strategy, plan)
    topology = plan_topology(plan, step.prediction.device, cluster, link, backend)
    device = devices.get(step.prediction.device)
    precision = PRECISIONS.get(step.prediction.precision, PRECISIONS["fp32"])
    rank, slower = sustained(graph_of(step).ranks[0], device, precision)
    memory = Memory(step.step.memory, rank, device.kind != "cpu")
    evaluator = Evaluator(scale_ranks(StepGraph((rank,)), plan.ranks), topology, plan, memory, method)
    result = search(evaluator, memory_limit_bytes, most_accumulation_steps, step.step.optimizer)
    full = memory_warning(device, result.peak_bytes or 0, "a rank")
    own = warnings_of_shares(step.prediction, device, step.step.peak_bytes)
    told = (*filter(None, (full,)), *own, *slower, *result.warnings)
    return replace(result, warnings=told, precision=precision)


def plan_for(ranks: int | None, strategy: str | Strategy | None, plan: Plan | None) -> Plan:
    """Return ``plan``, or the default of ``strategy``; ``CdmppError``: no number of ranks, or not the plan's."""
    if plan is None:
        if ranks is None:
            raise CdmppError("the number of ranks is not given: say how many devices train, or give a plan")
        return plan_on(ranks, strategy or DEFAULT_STRATEGY)
    if strategy is not None:
        raise UsageError("strategy does not go with plan, which says it: leave out one of the two")
    if ranks not in (None, plan.ranks):
        raise CdmppError(f"the plan is for {plan.ranks} ranks, and {ranks} are asked for: leave out one of the two")
    return plan


def check_slow(slow: Mapping[int, float], ranks: int) -> Mapping[int, float]:
    """Return ``slow`` as it is; ``CdmppError`` where a rank does not exist or a factor is not positive."""
    for rank, factor in slow.items():
        if rank not in range(ranks) or not 0 < factor <= _SLOWEST:
            allowed = f"a rank from 0 to {ranks - 1} and a positive factor of at most {_SLOWEST:g}"
            raise CdmppError(f"slow rank {rank}={factor:g}: expected {allowed}")
    return slow
