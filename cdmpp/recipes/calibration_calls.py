"""Calibration calls: the few framework operators that a device is timed by, spread over what a model tells apart."""

from __future__ import annotations

import numpy as np

from cdmpp.data.batching import ProgramTensors
from cdmpp.devices import Device
from cdmpp.measure.torch_plan import CallLimits, calibration_plan
from cdmpp.operators.operator import FAMILIES, EagerOperator
from cdmpp.platform.limits import Limits
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.program_batch import ReadOptions
from cdmpp.predict.read import read_batch
from cdmpp.recipes.candidates import latents
from cdmpp.training.sampling import Candidates, choose_tasks

_POOL = 200
"""Random calls of each family that are chosen from."""
CALLS = Limits(1, _POOL, "calls of each family")


def calibration_calls(
    start: Predictor, device: Device, limits: CallLimits, calls: int, seed: int
) -> list[EagerOperator]:
    """Choose ``calls`` operators of each family within ``limits`` by KMeans over the latents of ``start``.

    On eleven GPUs that were left out three of each class so chosen scale a model better than three random ones, see
    ``docs/framework-operators.md``. Source: CDMPP, Algorithm 1.

    Raises:
        CdmppError: ``calls`` is less than one or more than are chosen from.
    """
    CALLS.fitting("calls", calls)
    pool = calibration_plan(limits, _POOL, seed)
    asts = read_batch(pool, ReadOptions(device, start.features, False, 0.0)).asts
    programs = ProgramTensors.build(asts, {device.name: device}, [device.name] * len(asts))
    hidden = latents(start, programs.to(start.torch_device))
    families = np.array([operator.kind.family for operator in pool])
    chosen = []
    for family in FAMILIES:
        rows = np.flatnonzero(families == family)
        names = np.array([f"{row:06d}" for row in rows])
        chosen += [int(name) for name in choose_tasks("kmeans", Candidates(hidden[rows], names), calls, seed)]
    return [pool[row] for row in sorted(chosen)]
