"""Settings of ``cdmpp data measure``, with their defaults and clear errors for what this machine cannot do."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.devices import Device
from cdmpp.errors import DataError
from cdmpp.measure.remote import free_servers, parse_tracker
from cdmpp.operators.operator import ELEMENT_BYTES
from cdmpp.platform.limits import PROCESSES, SEED, Limits, check_choice, check_fields, numbers
from cdmpp.programs.zoo import expand_zoo, network_of

_PYTHON = re.compile(r"3\.\d{1,2}")


@dataclass(frozen=True)
class MeasureSettings:
    """Settings say what to measure and how. ``conf/measure.yaml`` takes its defaults from here.

    Raises:
        UnknownDeviceError: no such device.
        CdmppError: a network that the zoo does not hold, or a device that cannot be measured this way.
    """

    LIMITS = {
        "schedules_per_task": Limits(1, 10**6, "programs"),
        "budget": Limits(1, 10**9, "programs"),
        "time_limit_min": numbers(0, 10**6, "minutes", above=True),
        "batch": Limits(1, 10**6, "programs"),
        "seed": SEED,
        "operators": Limits(1, 10**7),
        "call_ms": numbers(0, 10**6, "milliseconds", above=True),
        "call_mb": numbers(0, 10**7, "megabytes", above=True),
        **dict.fromkeys(("repeat", "revise"), Limits(0, 10**9, "programs")),
        "builders": PROCESSES,
        "max_servers": Limits(1, 10**4, "servers"),
        "attempts": Limits(1, 100),
        "min_separation_s": numbers(0, 10**6, "seconds"),
    }

    device: Any = None
    """Name of what the measured machine is, a file of ``conf/device``: it names the records and the TVM target."""
    zoo: dict[str, Any] = field(default_factory=dict)
    """Network -> how to build it, as in ``conf/data/networks.yaml``."""
    networks: list[str] | None = None
    """Names of the zoo to use; None = all. Of ``runtime=torch``: whose operators come before the random ones; None =
    of none."""
    out: Path | None = None
    """Data set folder, None = ``datasets/<device>``, of operators ``datasets/<device>-torch``: a rerun continues it, a
    larger zoo extends it."""
    tasks_from: Path | None = None
    """Data set folder whose measured tasks are taken instead of the zoo's, to compare two devices on the same ones."""
    schedules_from: Path | None = None
    """Data set folder whose tasks are taken as with ``tasks_from``, with the very schedules recorded there instead of
    newly sampled ones."""
    programs: str | None = None
    """Instead of sampled schedules: ``untuned``, what TVM runs of each task without tuning; or a file of JSON lines
    ``[task id, schedule]``. Tasks without a line are left out."""
    schedules_per_task: int = 16
    """Distinct programs a task, at most (many elementwise tasks have one CPU schedule)."""
    budget: int | None = None
    """Programs in the data set when the run ends; None measures the whole plan."""
    time_limit_min: float | None = None
    """No new batch is started after this long."""
    batch: int = 192
    """Programs built between two measuring windows."""
    seed: int = 0
    """Seed of schedules and task order; of the operators."""
    runtime: str = "tvm"
    """``tvm``: programs that TVM schedules and compiles; ``torch``: operators that PyTorch serves with its own kernels,
    of random sizes, on this machine's CPU or GPU."""
    operators: int = 1600
    """Number of operators that ``runtime=torch`` plans; a larger number continues the list of the same seed."""
    dtype: str = "float32"
    """Data type of the operators of ``runtime=torch``."""
    call_ms: float = 250.0
    """Longest operator that ``runtime=torch`` plans, in milliseconds by the peak numbers of the datasheet."""
    call_mb: float | None = None
    """Most memory of a call's inputs and output with ``runtime=torch``, in MB; None = a quarter of the device's, of
    4 GB where the datasheet names none."""
    runner: str = "local"
    """``local``: this machine; ``rpc``: servers of a TVM RPC tracker, as many at once as are free."""
    tracker: str | None = None
    """host:port of the tracker."""
    key: str | None = None
    """Key under which the servers registered; None = the device's name."""
    devices: list[str] | None = None
    """Instead of ``device`` and ``key``: several, each ``KEY:DEVICE``, or ``DEVICE`` where it is the key too. All are
    measured at once, from a queue in ``out`` that several clients may share: ``docs/fleets.md``."""
    max_servers: int | None = None
    """With ``devices``: most servers of one key that this client uses at once; None = all that are free."""
    attempts: int = 5
    """With ``devices``: a job begun so often in vain is refused, and kept with the reason."""
    retry_refused: bool = False
    """With ``devices``: try refused jobs again."""
    repeat: int = 0
    """Measure this many recorded programs again instead, an hour or more after: the noise floor of the labels."""
    revise: int = 0
    """Visit this many recorded programs again instead whose label is in doubt, and merge: noisiest first."""
    kit: str | None = None
    """``build``: pack programs for a machine without compiler or network; ``merge``: its results -> records."""
    kit_folder: Path | None = None
    """Folder where ``kit=build`` writes ``parts/`` and ``kit=merge`` reads ``results/``; None = ``kits/<device>``."""
    kit_python: str | None = None
    """Python version of the device, such as 3.12: tvm_ffi is packed for it; None = it is installed there."""
    codes: bool = True
    """Compile CPU programs again after measuring for the code vectors that models read, about 0.2 s each."""
    builders: int = 2
    """Processes that sample and build."""
    min_separation_s: float | None = None
    """Time between the starts of two visits to one program; None = the protocol's."""
    progress: bool = True
    """Show a progress bar."""
    force: bool = False
    """Measure on a busy machine, and record what its visits disagree on: ``docs/measuring.md`` has the limits."""

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> MeasureSettings:
        """Read the composed ``conf/measure.yaml``; ``DataError`` for a key that nothing reads."""
        names = {entry.name for entry in fields(MeasureSettings)}
        if unknown := sorted(set(values) - names):
            raise DataError(f"unknown settings {', '.join(unknown)}; known: {', '.join(sorted(names))}")
        return MeasureSettings(**{**values, "device": devices.named(values["device"])})

    def __post_init__(self) -> None:
        device = devices.get(self.device)
        check_fields(self)
        check_choice("runtime", self.runtime, ("tvm", "torch"))
        check_choice("runner", self.runner, ("local", "rpc"))
        check_choice("kit", self.kit, (None, "build", "merge"))
        check_choice("dtype", self.dtype, tuple(ELEMENT_BYTES))
        check_places(self.tracker, self.kit_python)
        for name in self.networks or ():
            network_of(expand_zoo(self.zoo), name)
        if self.devices is not None:
            self._check_fleet()
            return
        if self.runtime == "torch":
            self._check_operators(device)
        if self.kit is not None:
            if (kind := device.target["kind"]) not in ("llvm", "cuda"):
                raise DataError(f"measurement kits are made for CPUs and NVIDIA GPUs; {device.name} has target {kind}")
        elif device.kind != "cpu" and self.runtime == "tvm":
            raise DataError(
                f"device {device.name} is a {device.kind}; this command measures on the CPU it runs on. "
                f"CPUs: {', '.join(d.name for d in devices.all_devices() if d.kind == 'cpu')}. "
                "runner=rpc measures on another CPU machine, kit=build packs programs for a GPU machine out of reach, "
                "runtime=torch measures operators of PyTorch on the GPU of this machine. "
                "Or import a tuning database: cdmpp data import source=metaschedule"
            )
        elif self.runner == "local" and self.threads > (here := len(os.sched_getaffinity(0))):
            raise DataError(
                f"programs of {device.name} run on {self.threads} cores, this process may use {here}: measure on a "
                "machine that has them (runner=rpc), or describe a device with fewer (conf/device/README.md)"
            )

    def _check_fleet(self) -> None:
        """``DataError`` for what does not go with ``devices``."""
        if not self.devices:
            raise DataError("devices=[] names none: devices=[KEY:DEVICE,...], or leave it out")
        if self.runner != "rpc" or self.tracker is None:
            raise DataError(f"devices={','.join(self.devices)} are measured over RPC: add runner=rpc tracker=HOST:PORT")
        given: dict[str, Any] = {"runtime": self.runtime != "tvm" and self.runtime, "kit": self.kit, "key": self.key}
        given |= {"repeat": self.repeat, "revise": self.revise}
        if others := [f"{name}={value}" for name, value in given.items() if value]:
            raise DataError(f"devices measures programs of a plan on several servers: leave out {', '.join(others)}")
        keys = [one.server_key for one in self.fleet()]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise DataError(f"devices names the key {', '.join(twice)} twice: a key stands for one device")

    def fleet(self) -> tuple[MeasureSettings, ...]:
        """Return the settings of each of ``devices``; errors as of one of them."""
        pairs = [one.rpartition(":") for one in self.devices or ()]
        return tuple(replace(self, devices=None, device=name, key=key or name) for key, _, name in pairs)

    def _check_operators(self, device: Device) -> None:
        """``DataError`` for what does not go with ``runtime=torch``."""
        given = {"kit": self.kit, "runner": self.runner != "local" and self.runner}
        given |= {name: getattr(self, name) for name in ("tasks_from", "schedules_from", "programs")}
        if others := [f"{name}={value}" for name, value in given.items() if value]:
            raise DataError(
                f"runtime=torch times operators of its own plan on this machine: leave out {', '.join(others)}"
            )
        if device.target["kind"] not in ("llvm", "cuda", "rocm"):
            raise DataError(
                f"runtime=torch: CPUs and GPUs of CUDA or ROCm; {device.name} is a {device.target['kind']} one"
            )

    @property
    def target(self) -> dict[str, Any]:
        """This is the TVM target of the device."""
        return devices.get(self.device).target

    @property
    def threads(self) -> int:
        """A program runs on so many cores here or in a kit: the target's ``num-cores``; over RPC 1."""
        return 1 if self.runner == "rpc" else int(self.target.get("num-cores", 1))

    @property
    def data_folder(self) -> Path:
        """Records go to this folder."""
        if self.devices is not None:
            return self.out or Path("datasets") / "fleet"
        return self.out or Path("datasets") / (f"{self.device}-torch" if self.runtime == "torch" else self.device)

    @property
    def parts_folder(self) -> Path:
        """A kit is built in this folder."""
        return self.kit_folder or Path("kits") / self.device

    @property
    def server_key(self) -> str:
        """RPC servers registered under this key."""
        return self.key or self.device

    def servers(self) -> int:
        """So many programs are timed at the same time; ``CdmppError`` where no RPC server answers."""
        return 1 if self.runner == "local" else free_servers(str(self.tracker or ""), self.server_key)

    def device_networks(self) -> dict[str, Mapping[str, Any]]:
        """Return name -> specification of the chosen networks that the device can run."""
        zoo, device = expand_zoo(self.zoo), devices.get(self.device)
        return {name: zoo[name] for name in self.networks or zoo if runs_on(zoo[name], device)}


def check_places(tracker: str | None, kit_python: str | None, prefix: str = "") -> None:
    """Raise ``CdmppError`` for what is no address of a tracker, or no version of Python."""
    if tracker is not None:
        parse_tracker(tracker)
    if kit_python is not None and not _PYTHON.fullmatch(kit_python):
        raise DataError(f"{prefix}kit_python is {kit_python!r}: expected a version of Python, such as 3.12")


def runs_on(spec: Mapping[str, Any], device: devices.Device) -> bool:
    """Return True if ``device`` computes in the data type of a zoo entry: float16 needs published matrix rates."""
    return spec.get("dtype", "float32") == "float32" or bool(device.spec["fp16_matrix_tflops"])
