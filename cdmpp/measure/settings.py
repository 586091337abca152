"""Plain configuration values -> what to measure, with clear errors for what this machine cannot do."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.errors import DataError
from cdmpp.measure import protocol
from cdmpp.measure.remote import free_servers
from cdmpp.programs.networks import expand_zoo

CPU_TASK_FLOPS, GPU_TASK_FLOPS = 4e9, 4e11
KIT_STEPS = ("build", "run", "merge")


@dataclass(frozen=True)
class RpcSettings:
    """Where programs are timed instead of here."""

    tracker: str
    """host:port of a TVM RPC tracker."""
    key: str
    """What the servers registered under."""
    servers: int
    """Sessions at the same time."""


@dataclass(frozen=True)
class KitSettings:
    """How a measurement kit is packed."""

    python: str | None = None
    """Python version of the device, such as 3.12, to pack tvm_ffi for it; None where it is installed there."""
    part_mb: float = 16.0
    """Largest size of a part."""
    part_programs: int = 1500
    """Programs in a part, at most: what a run on the device loses where the part is lost."""
    check: int = 32
    """Tasks of which one kernel is compared with the result of the unscheduled task."""


@dataclass(frozen=True)
class CollectSettings:
    """What to measure. Times in seconds."""

    device: str
    target: Mapping[str, Any]
    zoo: Mapping[str, Mapping[str, Any]]
    schedules_per_task: int = 16
    budget: int | None = None
    """Programs in the data set when the run ends; None measures the whole plan."""
    time_limit_s: float | None = None
    """No new batch is started after this long."""
    batch: int = 192
    """Programs built between two measuring windows."""
    seed: int = 0
    builders: int = 2
    threads: int = 1
    """Cores that a program runs on: the target's ``num-cores``, measured here."""
    tasks_from: Path | None = None
    """Data set folder whose measured tasks are taken instead of the zoo's, to compare two devices on the same ones."""
    schedules_from: Path | None = None
    """As ``tasks_from``, and the very schedules recorded there instead of newly sampled ones."""
    kit: KitSettings | None = None
    """None: programs are timed, here or over RPC. Otherwise they are packed for a machine out of reach."""
    max_task_flops: float = CPU_TASK_FLOPS
    """Heavier tasks are left out: their random schedules run for seconds."""
    min_separation_s: float = protocol.CPU.min_separation_s
    phase_file: Path | None = None
    show_progress: bool = True
    rpc: RpcSettings | None = None
    """None: programs run on this machine."""


def collect_settings(values: Mapping[str, Any]) -> CollectSettings:
    """Settings from the keys of ``conf/measure.yaml``.

    Raises:
        UnknownDeviceError: no such device.
        DataError: a network that the zoo does not hold, or a device that cannot be measured this way.
    """
    device = devices.get(values["device"]["name"])
    kit = _kit(values, device)
    if device.kind != "cpu" and kit is None:
        raise DataError(
            f"device {device.name} is a {device.kind}; this command measures on the CPU it runs on. "
            f"CPUs: {', '.join(d.name for d in devices.all_devices() if d.kind == 'cpu')}. "
            "runner=rpc measures on another CPU machine, kit=build packs programs for a GPU machine out of reach. "
            "Or import a tuning database: scripts/import_data.py source=metaschedule"
        )
    zoo = expand_zoo(values["zoo"])
    names = list(values["networks"] or zoo)
    for name in names:
        if name not in zoo:
            near = difflib.get_close_matches(name, zoo, n=3) or sorted(zoo)
            raise DataError(f"network {name!r} is not in the zoo; nearest: {', '.join(near)} (conf/data/networks.yaml)")
    minutes = values["time_limit_min"]
    if values["runner"] not in ("local", "rpc"):
        raise DataError(
            f"runner={values['runner']!r} is unknown; runner=local times on this machine, runner=rpc elsewhere"
        )
    rpc = None
    if values["runner"] == "rpc":
        tracker, key = str(values["tracker"] or ""), str(values["key"] or device.name)
        rpc = RpcSettings(tracker, key, free_servers(tracker, key))
    return CollectSettings(
        device=device.name,
        target=device.target,
        zoo={name: zoo[name] for name in names if runs_on(zoo[name], device)},
        schedules_per_task=values["schedules_per_task"],
        budget=values["budget"],
        time_limit_s=60.0 * minutes if minutes else None,
        batch=values["batch"],
        seed=values["seed"],
        phase_file=Path(values["phase_file"]) if values["phase_file"] else None,
        rpc=rpc,
        threads=1 if rpc else _cores(device, elsewhere=kit is not None),
        tasks_from=Path(values["tasks_from"]) if values["tasks_from"] else None,
        schedules_from=Path(values["schedules_from"]) if values["schedules_from"] else None,
        kit=kit,
        max_task_flops=CPU_TASK_FLOPS if device.kind == "cpu" else GPU_TASK_FLOPS,
    )


def runs_on(spec: Mapping[str, Any], device: devices.Device) -> bool:
    """Whether ``device`` computes in the data type of a zoo entry: float16 needs published matrix rates."""
    return spec.get("dtype", "float32") == "float32" or bool(device.spec["fp16_matrix_tflops"])


def _kit(values: Mapping[str, Any], device: devices.Device) -> KitSettings | None:
    if values["kit"] is None:
        return None
    if values["kit"] not in KIT_STEPS:
        raise DataError(f"kit={values['kit']!r} is unknown; one of {', '.join(KIT_STEPS)}")
    if device.target["kind"] not in ("llvm", "cuda"):
        raise DataError(f"kits are made for CPUs and NVIDIA GPUs; {device.name} has target {device.target['kind']}")
    python = values["kit_python"]
    return KitSettings(None if python is None else str(python), float(values["part_mb"]))


def _cores(device: devices.Device, elsewhere: bool) -> int:
    """Cores that the target's programs run on; ``DataError`` where they are to run here and this machine has fewer."""
    threads, here = int(device.target.get("num-cores", 1)), len(os.sched_getaffinity(0))
    if threads > here and not elsewhere:
        raise DataError(
            f"programs of {device.name} run on {threads} cores, this process may use {here}: measure on a machine "
            "that has them (runner=rpc reaches one), or describe a device with fewer (conf/device/README.md)"
        )
    return threads
