"""A training step on several ranks, asked for by a client: what ``cdmpp step --ranks`` and its options say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from cdmpp.devices import get
from cdmpp.errors import UsageError
from cdmpp.network.predict import predict_step
from cdmpp.network.runtime import INDUCTOR
from cdmpp.network.training_prediction import StepPrediction
from cdmpp.network.training_step import ONE_DEVICE
from cdmpp.network.workload import Workload
from cdmpp.plans.distributed_step import check_slow, replay_plan, replay_step
from cdmpp.plans.host_memory import host_of
from cdmpp.plans.placement import replica_batch_of
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.plan_topology import plan_topology
from cdmpp.plans.sources.network import network_source
from cdmpp.plans.sources.predicted import at
from cdmpp.plans.strategies import DEFAULT_STRATEGY, STRATEGIES
from cdmpp.platform.limits import shown
from cdmpp.steps.exchange_tasks import check_granularity
from cdmpp.steps.step_replay import StepReplay
from cdmpp.steps.strategy import Strategy

PLACE = ("cluster", "link", "backend")
OF_RANKS = (*PLACE, "strategy", "settings", "offload", "granularity", "slow", "global_batch")
"""Fields of a request that go with ``ranks``."""


def plan_of(asked: Mapping[str, Any]) -> Plan | None:
    """Return the plan of a request; None: it is of one device.

    Raises:
        CdmppError: no such strategy, setting or rank, ranks that do not fit, or a field that needs ``ranks``.
    """
    if asked.get("ranks") is None:
        if given := [name for name in OF_RANKS if asked.get(name)]:
            raise UsageError(f"{given[0]} goes with ranks: say how many devices train")
        return None
    plan = plan_on(asked["ranks"], _strategy(asked), offload=tuple(asked.get("offload") or ()))
    topology = plan_topology(plan, asked["device"], asked.get("cluster"), asked.get("link"), asked.get("backend"))
    if plan.offload:
        host_of(plan, topology)
    check_granularity(asked.get("granularity", "collective"), plan.ranks)
    check_slow(_slow(asked), plan.ranks)
    return plan


def replayed(
    asked: Mapping[str, Any], workload: Workload, plan: Plan, runtime: Any, name: str
) -> tuple[StepPrediction, StepReplay]:
    """Return the step of one device and its replay on the ranks of a plan.

    Args:
        asked: fields of the request.
        workload: the training step.
        plan: as of ``plan_of``.
        runtime: what runs it.
        name: the name of that, as the request has it.
    """
    if name == INDUCTOR:
        raise UsageError(f"ranks is of runtime torch: {ONE_DEVICE}")
    if plan.model_parallel and name != "torch":
        divided = " and ".join(one.name for one in plan.model_parallel)
        raise UsageError(f"{divided} divides the operators of runtime torch, given {name}: ask with runtime torch")
    if (global_batch := asked.get("global_batch")) is not None:
        if workload.batch is not None:
            raise UsageError("batch and global_batch: give the examples of one replica, or those of all")
        workload = at(workload, replica_batch_of(plan, global_batch))
    found = predict_step(workload, asked["device"], runtime, progress=False)
    more: dict[str, Any] = {one: asked.get(one) for one in PLACE}
    more |= {"granularity": asked.get("granularity", "collective"), "slow": _slow(asked), "global_batch": global_batch}
    if not plan.model_parallel:
        made = replay_step(found, plan=plan, **more)
    else:
        source = network_source(workload, get(asked["device"]), asked.get("model"))
        batch = found.step.batch if global_batch is None else None
        made = replay_plan(source, plan, batch, device=asked["device"], **more)
    return found, replace(made, graph=None)  # of all ranks it is large, and whoever wants it has the command


def _strategy(asked: Mapping[str, Any]) -> Strategy:
    kind, given = STRATEGIES[asked.get("strategy") or DEFAULT_STRATEGY], dict(asked.get("settings") or {})
    known = [one.name for one in fields(kind)]
    if odd := [name for name in given if name not in known]:
        raise UsageError(f"settings has {shown(odd[0])}, and {kind.name} has {', '.join(known)}")
    return kind(**given)


def _slow(asked: Mapping[str, Any]) -> dict[int, float]:
    """Rank -> factor; JSON has texts as keys."""
    found = dict[int, float]()
    for rank, factor in (asked.get("slow") or {}).items():
        if not (rank.isascii() and rank.isdecimal()) or len(rank) > 6 or int(rank) in found:
            raise UsageError(f"slow has {shown(rank)}: expected each rank once, such as 2, and its factor")
        found[int(rank)] = factor
    return found
