"""Measure a handful of chosen tasks: here, over RPC, or packed into a kit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.devices import Device
from cdmpp.errors import DataError
from cdmpp.lock import writing
from cdmpp.measure.collector import Collector
from cdmpp.measure.kit.builder import KitBuilder
from cdmpp.measure.plan import add_tasks
from cdmpp.measure.settings import CollectSettings, collect_settings
from cdmpp.programs.task import Task

WAYS = ("local", "rpc", "kit")


@dataclass(frozen=True)
class MeasureSettings:
    """How labels of a device are got; ``conf/finetune.yaml`` explains the fields."""

    out: Path
    """Data set folder; a rerun continues it."""
    how: str | None = None
    """One of ``WAYS``, or None: records that exist are all there is."""
    schedules_per_task: int = 16
    time_limit_min: float | None = 20.0
    test_tasks: int = 10
    """Tasks measured besides, only to tell the error."""
    tracker: str | None = None
    key: str | None = None
    kit_folder: Path | None = None
    kit_python: str | None = None

    def __post_init__(self) -> None:
        if self.how is not None and self.how not in WAYS:
            raise DataError(f"measure.how={self.how!r} is unknown; one of {', '.join(WAYS)}, or null for records")


def collector_settings(device: Device, settings: MeasureSettings, seed: int = 0) -> CollectSettings:
    """What the collector is told; ``DataError`` where the device cannot be measured this way, or no server answers."""
    kit = settings.how == "kit"
    values = {
        "device": {"name": device.name},
        "zoo": {},
        "networks": None,
        "schedules_per_task": settings.schedules_per_task,
        "budget": None,
        "time_limit_min": settings.time_limit_min,
        "batch": 192,
        "seed": seed,
        "runner": "rpc" if settings.how == "rpc" else "local",
        "tracker": settings.tracker,
        "key": settings.key,
        "kit": "build" if kit else None,
        "kit_python": settings.kit_python,
        "part_mb": 16,
        "phase_file": None,
        "tasks_from": None,
        "schedules_from": None,
    }
    return collect_settings(values)


def measure_tasks(tasks: Sequence[Task], device: Device, settings: MeasureSettings, seed: int = 0) -> dict[str, Any]:
    """Random schedules of ``tasks``, in that order, as records in ``settings.out``; or a kit of them (``how=kit``).

    Returns the report of the collector or of the kit builder; raises as ``collector_settings`` does.
    """
    kit, chosen = settings.how == "kit", collector_settings(device, settings, seed)
    folder = Path(settings.kit_folder or f"kits/{device.name}") if kit else settings.out
    with writing(folder, f"measuring of {device.name}"):
        add_tasks(folder, tasks)
        return (KitBuilder if kit else Collector)(chosen, folder).run()
