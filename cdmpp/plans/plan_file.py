"""A plan as a YAML file.

    strategy:                        # its name, or its name with settings; see the classes in plans/strategies
      name: ddp
      bucket_bytes: [1048576, 26214400]
      gradient_as_bucket_view: false
      overlap: true
    degrees: {dp_replicate: 8}       # dp_replicate, dp_shard, tp, pp, cp, ep, spatial, filter, channel; else 1
    model_parallel: []               # strategies that divide the model, by name or with settings, such as
                                     # {name: pipeline, schedule: interleaved1f1b, stages_per_rank: 2, micro_batches: 8}
    gradient_accumulation_steps: 1   # 1 to 1024 batches
    recompute: [h.0, h.1]            # names of modules
    update: separate                 # or fused
    synchrony: bsp                   # its name, or its name with settings
    devices: [t4:8, a10:8]           # device of each rank in order, with counts; left out: all have that of the job
    shares: [5, 3]                   # micro-batches of each replica, with the mean of all; left out: equally many
    offload: [parameters]            # what lies in the memory of the host

Keys that are left out have the defaults of ``Plan``. A file without ``degrees`` is a plan for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from cdmpp.errors import CdmppError
from cdmpp.model.config import check_keys, config_from_dict
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.plan import Plan, from_runs, plan_on
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.platform.content import read_yaml
from cdmpp.platform.files import write_atomic
from cdmpp.platform.limits import fitting
from cdmpp.synchrony.policies import SYNCHRONIES


def plan_from_dict(values: Mapping[str, Any], ranks: int | None = None) -> Plan:
    """Make a plan of plain values.

    Args:
        values: what ``Plan.to_dict`` gave, or a part of it.
        ranks: number of ranks of the job; needed where ``degrees`` is left out, else it must be their product.

    Raises:
        CdmppError: an unknown key, with the nearest ones; a value that cannot be; another number of ranks.
    """
    values = dict(fitting("plan", values, Mapping))
    check_keys(values, [one.name for one in fields(Plan)], "plan.")
    if "strategy" in values:
        values["strategy"] = STRATEGIES.from_dict(values["strategy"], "strategy")
    if "synchrony" in values:
        values["synchrony"] = SYNCHRONIES.from_dict(values["synchrony"], "synchrony")
    if "model_parallel" in values:
        given = fitting("model_parallel", values["model_parallel"], list[Any])
        made = (STRATEGIES.from_dict(one, f"model_parallel.{place}") for place, one in enumerate(given))
        values["model_parallel"] = tuple(made)
    if "recompute" in values:
        values["recompute"] = fitting("plan.recompute", values["recompute"], tuple[str, ...])
    for key, kind in (("devices", tuple[str, ...]), ("shares", tuple[int, ...]), ("offload", tuple[str, ...])):
        if key in values:
            values[key] = fitting(f"plan.{key}", values[key], kind)
    if "devices" in values:
        values["devices"] = from_runs("plan.devices", values["devices"])
    if "degrees" not in values:
        return _consistent(Plan(**values) if ranks is None else plan_on(ranks, **values))
    values["degrees"] = config_from_dict(ParallelDegrees, values["degrees"], "degrees")
    plan = _consistent(Plan(**values))
    if ranks not in (None, plan.ranks):
        raise CdmppError(f"the plan is for {plan.ranks} ranks, and {ranks} are asked for: leave out one of the two")
    return plan


def _consistent(plan: Plan) -> Plan:
    """Return the plan.

    ``CdmppError``: a strategy that divides the model has one rank to divide it among, or settings contradict what a
    pipeline sets by itself.
    """
    for one in plan.model_parallel:
        if plan.degrees.size(*one.degrees) == 1:
            own = " and ".join(f"degrees.{name}" for name in one.degrees)
            raise CdmppError(
                f"plan.model_parallel names {one.name}, and {own} is 1: give degrees with more, or leave out {one.name}"
            )
    strategy, is_piped = plan.strategy, plan.degrees.pp > 1
    if getattr(strategy, "is_pipelined", False) and not is_piped:
        raise CdmppError(
            f"{strategy.name}.is_pipelined is true, and degrees.pp is 1: leave it out, a plan with a pipeline sets it "
            "by itself"
        )
    if getattr(strategy, "scatter_each_batch", False) and is_piped:
        raise CdmppError(
            f"{strategy.name}.scatter_each_batch is true, and in a pipeline all gradients are scattered after the last "
            "micro-batch: leave it out"
        )
    return plan


def read_plan(path: Path, ranks: int | None = None) -> Plan:
    """Read the plan of a file, as ``plan_from_dict`` does; every error names the file."""
    values = read_yaml(path)
    try:
        return plan_from_dict(values, ranks)
    except CdmppError as error:
        raise CdmppError(f"{path}: {error}") from error


def save_plan(plan: Plan, path: Path) -> None:
    """Write a file that ``read_plan`` reads, whole or not at all; ``DataError`` where that cannot be."""
    text = yaml.safe_dump(plan.to_dict(), sort_keys=False, default_flow_style=None)
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
