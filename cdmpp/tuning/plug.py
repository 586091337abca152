"""The cost model of a search: found by a device's name, and set inside a pass that has no argument for it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir.meta_schedule import relax_integration

from cdmpp import devices
from cdmpp.devices import Device
from cdmpp.platform.limits import SEED, checked
from cdmpp.predict.catalogue import model_for, models
from cdmpp.predict.model_folder import find_model, load
from cdmpp.predict.predictor import Predictor
from cdmpp.tuning.cost_model import CostModel

_HOOK = "tvm.s_tir.meta_schedule.tune_relax"
"""The function by which ``relax.transform.MetaScheduleTuneIRMod`` calls the tuner."""


@checked(seed=SEED)
def make_cost_model(
    device: str | Device,
    model: str | Path | None = None,
    *,
    frozen: bool = False,
    two_stage: bool = True,
    seed: int = 0,
) -> Any:
    """Make a cost model for ``ms.tune_tir``, ``ms.tune_tasks`` and ``tune_relax``; its ``builder`` goes with it.

    Args:
        device: name of the device that is tuned for, or one described in Python. It need not have records.
        model: folder of a trained model or name of a shipped one; None: the first for the device.
        frozen: go only by the trained model and learn nothing from what is measured.
        two_stage: on x86-64 CPUs compile the most promising candidates of each batch and read their machine code.
        seed: of the scores of candidates that cannot be read.

    Raises:
        CdmppError: no such device, or no model for it.
    """
    sheet, predictor, name = device_and_predictor(device, model)
    return CostModel(predictor, sheet, name, frozen, two_stage, seed)


def device_and_predictor(device: str | Device, model: str | Path | None) -> tuple[Device, Predictor, str]:
    """Return the device as the model knows it, the model, and its name; ``model`` None: the first for the device."""
    sheet = devices.get(device) if isinstance(device, str) else device
    folder = find_model(str(model)) if model is not None else model_for(sheet, models()).folder
    predictor = load(folder)
    return predictor.trained_on.get(sheet.name, sheet), predictor, folder.name


@contextmanager
def tuning_with(cost_model: Any, **options: Any) -> Generator[None]:
    """Let ``relax.transform.MetaScheduleTuneIRMod`` search with ``cost_model`` and its builder inside.

    ``options`` are further ones of ``tune_relax``, such as ``runner`` or ``num_trials_per_iter``.
    """
    given = {"cost_model": cost_model, "builder": cost_model.builder, **options}

    def tuned(
        module: Any, params: Any, target: Any, work_dir: str, trials: Any, each: Any = None, ops: Any = None
    ) -> Any:
        most = None if each is None else int(each)
        relax_integration.tune_relax(module, params, target, str(work_dir), int(trials), most, ops, **given)
        return module  # the pass chooses schedules and applies none

    own = tvm.get_global_func(_HOOK)
    tvm.register_global_func(_HOOK, tuned, override=True)
    try:
        yield
    finally:
        tvm.register_global_func(_HOOK, own, override=True)
