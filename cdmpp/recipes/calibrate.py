"""Calibration: a device's own numbers and a dozen or two of its kernels, timed in minutes, scale a model to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp import devices
from cdmpp.ast.layout import EAGER_FEATURES
from cdmpp.data.codes import derive_codes
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.loading import load_dataset
from cdmpp.data.records import read_records, record_parts
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, DataError
from cdmpp.machine_code.cpu.compile import can_have_code
from cdmpp.measure.collector import REFERENCE_FILE, Collector
from cdmpp.measure.disturbance import Disturbance
from cdmpp.measure.plan import add_tasks
from cdmpp.measure.probe import probe
from cdmpp.measure.settings import MeasureSettings
from cdmpp.platform.files import plain
from cdmpp.platform.limits import check_choice, check_fields, numbers
from cdmpp.platform.lock import writing
from cdmpp.predict.model_folder import load
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes.calibration_calls import CALLS, calibration_calls
from cdmpp.recipes.scaled import scale_to, tensors_of
from cdmpp.training.metrics import latency_metrics

_SCHEDULES, _BATCH, _SEPARATION_S = 4, 52, 15.0
_CALL_MS = 50.0
"""The longest call by the datasheet's peak numbers: one that is timed tens of times in these minutes is no longer."""
FEWEST_TASKS = 6
FORCE = "--force"


@dataclass(frozen=True)
class CalibrateSettings:
    """These are the settings of ``cdmpp model calibrate``; ``CdmppError`` where one cannot be."""

    LIMITS = {"time_limit_min": numbers(0, 10**6, "minutes", above=True), "calls": CALLS}

    device: str
    """The name of this machine, a file of ``conf/device``."""
    out: Path
    """Gets ``records/`` and ``model/``; a rerun goes on with the records."""
    start: str
    """Folder or name of the model that is scaled."""
    time_limit_min: float = 2.5
    """No new batch of programs is begun after this long."""
    progress: bool = True
    runtime: str = "tvm"
    """``tvm``: programs on a CPU; ``torch``: calls of PyTorch's operators on the CPU or GPU of this machine."""
    calls: int = 3
    """Calls of each family of kernels that are timed with ``runtime="torch"``, chosen by ``calibration_calls``."""
    force: bool = False
    """Store the model although the machine was busy, see ``Disturbance``, or although it is the worse one."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_choice("runtime", self.runtime, ("tvm", "torch"))


def calibrate(settings: CalibrateSettings) -> dict[str, Any]:
    """Time this machine, scale the model, leave it in ``out/model``; returns what was found.

    Raises:
        CdmppError: a device whose machine code is not read, a model that reads none, or no compiler for the probe; of
            ``runtime="torch"`` a model of another kind.
        DataError: too few calibration kernels could be measured, the GPU is not in this machine, the machine is
            busy, or the model as it is answers the calibration kernels better than the scaled one.
    """
    described, start = devices.get(settings.device), load(settings.start)
    if settings.runtime == "torch":
        if start.features != EAGER_FEATURES:
            raise CdmppError(f"the model {settings.start} knows no framework operators: start from one that does")
    elif not can_have_code(described.target) or not described.core:
        raise CdmppError(f"calibration reads x86-64 machine code on a described core; {described.name} has none of it")
    elif not start.can_scale or start.features != "cdmpp":
        raise CdmppError(f"the model {settings.start} reads no machine code of CPUs: start from one that does, as cpus")
    if not settings.force:
        Disturbance.now().check(FORCE)
    device = described if described.kind == "gpu" else described.measured_as(probe().spec())
    records = _measure(settings, start)
    rows = np.arange(len(records))
    if (tasks := len(np.unique(records.task_ids))) < FEWEST_TASKS:
        raise DataError(
            f"{tasks} calibration kernels could be measured, it takes {FEWEST_TASKS}: see {settings.out}/records"
        )
    taken = Disturbance.of(read_records(settings.out / "records", settings.device))
    if not settings.force:
        taken.check(FORCE, "No model was stored, and the next run measures the calibration kernels again")
    before = _figures(start, records, rows, device)
    left_out = _left_out(start, records, device)
    if not settings.force:
        _check_gain(before, left_out, settings)
    scaled, factors = scale_to(start, device, records, rows)
    found = plain(
        {
            "device": device.name,
            "start": settings.start,
            "programs": len(rows),
            "tasks": tasks,
            "measured": {name: device.spec[name] for name in sorted(device.measured)},
            "machine": {"load": taken.load, "processors": taken.processors, "spread": taken.spread},
            "busy": taken.reasons,
            "factors": factors,
            "before": before,
            "left_out_tasks": left_out,
        }
    )
    scaled.calibrated |= {device.name}
    scaled.card["calibrated"] = found
    scaled.save(settings.out / "model")
    return found


def _check_gain(before: Mapping[str, float], after: Mapping[str, float], settings: CalibrateSettings) -> None:
    """``DataError`` where the mean error of the calibration kernels grew, each scaled by what the others tell.

    A median that fell beside it is no gain: on a Zen 5 it fell by 2.5 points, the mean grew by 2.5, and answers to 612
    other programs were 5.5 points worse.
    """
    if after["mape"] > before["mape"]:
        raise DataError(
            f"scaling makes the answers of {settings.start} worse on {settings.device}: {before['mape']:.1f} % off "
            f"(median {before['median_ape']:.1f}) as it is, {after['mape']:.1f} % (median {after['median_ape']:.1f}) "
            f"scaled, each kernel by what the others tell. No model was stored: use {settings.start} as it is, or add "
            f"{FORCE}; the records stay in {settings.out / 'records'}"
        )


def _measure(settings: CalibrateSettings, start: Predictor) -> LatencyDataset:
    folder = settings.out / "records"
    if not settings.force:
        _forget_disturbed(folder, settings.device)
    plan = MeasureSettings(
        settings.device,
        out=folder,
        runtime=settings.runtime,
        schedules_per_task=_SCHEDULES,
        call_ms=_CALL_MS,
        time_limit_min=settings.time_limit_min,
        batch=_BATCH,
        min_separation_s=_SEPARATION_S,
        progress=settings.progress,
        force=True,  # what is measured is kept; whether it is used is decided on all of it
    )
    if settings.runtime == "torch":
        from cdmpp.measure.torch_collector import TorchCollector
        from cdmpp.measure.torch_plan import CallLimits

        described = devices.get(settings.device)
        limits = CallLimits.of(described, _CALL_MS, None)
        chosen = calibration_calls(start, described, limits, settings.calls, plan.seed)
        TorchCollector(plan, folder, chosen).run()
        return load_dataset(folder, settings.device)
    from cdmpp.programs.calibration_kernels import calibration_tasks

    with writing(folder, f"calibration of {settings.device}"):
        add_tasks(folder, calibration_tasks())
        Collector(plan, folder).run()
    derive_codes(folder, progress=settings.progress)
    return load_dataset(folder, settings.device)


def _forget_disturbed(folder: Path, device: str) -> None:
    """Remove the records of an earlier run on a busy machine, and what it took for quiet."""
    if Disturbance.of(read_records(folder, device)).reasons:
        with writing(folder, f"calibration of {device}"):
            for path in (*record_parts(folder), folder / REFERENCE_FILE):
                path.unlink(missing_ok=True)


def _left_out(start: Predictor, dataset: LatencyDataset, device: Device) -> dict[str, float]:
    """Errors of each calibration kernel by what the others tell."""
    names, predicted = dataset.task_ids, np.empty(len(dataset))
    for task in np.unique(names):
        rest, own = np.flatnonzero(names != task), np.flatnonzero(names == task)
        scaled, _ = scale_to(start, device, dataset, rest)
        predicted[own] = predict_rows(scaled, dataset, own)
    return latency_metrics(dataset.latency_s, predicted, names, dataset.devices)


def _figures(start: Predictor, dataset: LatencyDataset, rows: np.ndarray, device: Device) -> dict[str, float]:
    seen = start.examine(tensors_of(dataset, rows, device).to(str(start.torch_device)), np.arange(len(rows)))
    return latency_metrics(
        dataset.latency_s[rows], np.exp(seen.log_prediction), dataset.task_ids[rows], dataset.devices[rows]
    )
