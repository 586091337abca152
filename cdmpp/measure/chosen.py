"""Measure a handful of chosen tasks: here, over RPC, or packed into an offline measurement kit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cdmpp.devices import Device
from cdmpp.measure.collector import Collector
from cdmpp.measure.kit.builder import KitBuilder
from cdmpp.measure.plan import add_tasks
from cdmpp.measure.settings import MeasureSettings, check_places
from cdmpp.platform.limits import Limits, check_choice, check_fields
from cdmpp.platform.lock import writing
from cdmpp.programs.task import Task


@dataclass(frozen=True)
class LabelSettings:
    """These settings say how labels of a device are measured; those of ``MeasureSettings`` mean the same there."""

    LIMITS = {**MeasureSettings.LIMITS, "test_tasks": Limits(0, 10**6, "tasks")}

    out: Path
    """Data set folder; a rerun continues it."""
    how: str | None = None
    """local: this machine is the device; rpc: servers of a TVM tracker; kit: pack, carry, merge, run again; null: the
    records that exist are all there is."""
    schedules_per_task: int = MeasureSettings.schedules_per_task
    time_limit_min: float | None = 20.0
    """No new batch of programs is started after this long; null: no limit."""
    test_tasks: int = 10
    """Tasks measured besides, only to tell the error; 0: none."""
    tracker: str | None = None
    key: str | None = None
    kit_folder: Path | None = None
    kit_python: str | None = None
    force: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "measure.")
        check_places(self.tracker, self.kit_python, "measure.")
        check_choice("measure.how", self.how, (None, "local", "rpc", "kit"))


_SHARED = [f.name for f in fields(LabelSettings) if f.name not in ("how", "test_tasks")]


def measure_settings(device: Device, labels: LabelSettings, seed: int = 0) -> MeasureSettings:
    """Return settings of the measurement; ``DataError``: not measurable this way, or no server answers."""
    shared = {name: getattr(labels, name) for name in _SHARED}
    runner, kit = "rpc" if labels.how == "rpc" else "local", "build" if labels.how == "kit" else None
    settings = MeasureSettings(device.name, seed=seed, runner=runner, kit=kit, **shared)
    settings.servers()
    return settings


def measure_tasks(tasks: Sequence[Task], device: Device, labels: LabelSettings, seed: int = 0) -> dict[str, Any]:
    """Measure random schedules of ``tasks``, in order, as records in ``labels.out``; or pack them (``how=kit``)."""
    settings = measure_settings(device, labels, seed)
    kind, folder = (KitBuilder, settings.parts_folder) if settings.kit else (Collector, settings.data_folder)
    with writing(folder, f"measuring of {device.name}"):
        add_tasks(folder, tasks)
        return kind(settings, folder).run()
