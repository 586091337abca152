"""Rank: schedules of one workload in the order of their predicted latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.platform.limits import Limits, checked
from cdmpp.programs.task import Task
from cdmpp.tuning.plug import device_and_predictor

LOOK = 16
"""Candidates that are compiled unless the caller says otherwise."""


@dataclass(frozen=True)
class Ranking:
    """A ranking is an order of n candidates."""

    order: tuple[int, ...]
    """Places among the candidates, fastest first; those that cannot be read or do not compile are not among them."""
    latency_s: np.ndarray
    """(n,) predicted seconds, by place; NaN for those without an answer."""
    compiled: np.ndarray
    """(n,) bool: the answer is by machine code."""
    reasons: dict[int, str]
    """The reason for which a candidate has no answer, by place."""


@checked(look=Limits(0, 10**6, "schedules"))
def rank_schedules(
    task: Any,
    candidates: Sequence[Any],
    device: str | Device,
    model: str | Path | None = None,
    look: int = LOOK,
) -> Ranking:
    """Rank schedules by predicted latency, without running any.

    Args:
        task: the workload: a ``Task``, an ``IRModule`` or a ``PrimFunc``.
        candidates: schedules of it: ``Schedule`` objects, scheduled ``IRModule``s, or traces as JSON.
        device: name of the device, or one described in Python.
        model: folder of a trained model or name of a shipped one; None: the first for the device.
        look: how many of the most promising are compiled, where the model reads machine code; 0: none.

    Raises:
        CdmppError: no such device or model, no candidate, or one of another kind.
    """
    import tvm
    import tvm_ffi

    from cdmpp.programs.replay import parse_target, parse_workload, replay_on
    from cdmpp.tuning.two_stage import TwoStageScorer

    if not len(candidates):
        raise CdmppError("there is no candidate to rank")
    workload = parse_workload(task.workload) if isinstance(task, Task) else task
    if isinstance(workload, tvm.tirx.PrimFunc):
        workload = tvm.IRModule({"main": workload})
    if not isinstance(workload, tvm.IRModule):
        raise CdmppError(f"a {type(task).__name__} is no workload: give a Task, an IRModule or a PrimFunc")

    def module_of(candidate: Any) -> Any:
        if isinstance(candidate, str):
            return replay_on(workload, candidate).mod
        found = getattr(candidate, "mod", candidate)
        if not isinstance(found, tvm.IRModule):
            raise CdmppError(
                f"a {type(candidate).__name__} is no candidate: give Schedules, scheduled IRModules or traces as JSON"
            )
        return found

    modules = [module_of(candidate) for candidate in candidates]
    keys = [int(tvm_ffi.structural_hash(module)) for module in modules]
    sheet, predictor, _ = device_and_predictor(device, model)
    name = f"{int(tvm_ffi.structural_hash(workload)):x}"
    two_stage = TwoStageScorer.of(predictor, sheet, look)
    judged = two_stage.judged(dict(zip(keys, modules, strict=True)), parse_target(sheet.target), name)
    latency_s = np.array([math.exp(judged.log_latency.get(key, math.nan)) for key in keys])
    latency_s[~np.isfinite(latency_s)] = math.nan
    usable = np.flatnonzero(~np.isnan(latency_s))
    return Ranking(
        tuple(int(place) for place in usable[np.argsort(latency_s[usable], kind="stable")]),
        latency_s,
        np.array([key in judged.compiled for key in keys]),
        {place: judged.reasons[key] for place, key in enumerate(keys) if key in judged.reasons},
    )
