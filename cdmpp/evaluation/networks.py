"""Whole networks, predicted and measured: one cell a network, batch and schedule, and what its error is made of."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdmpp.devices import Device
from cdmpp.errors import CdmppError, DataError
from cdmpp.measure.software import processor
from cdmpp.network.compiled.checked import measured_here
from cdmpp.network.compiled.cold import cold_of, levels_of
from cdmpp.network.compiled.measured import quiet_seconds
from cdmpp.network.compiled.residency import Touch, touches
from cdmpp.network.compiled.runtime import CompiledRuntime
from cdmpp.network.liveness import peak_activation_bytes
from cdmpp.network.workload import Workload
from cdmpp.platform.files import read_json

_EAGER_RUNS = 8


@dataclass(frozen=True)
class CallCell:
    """This is one call of a network."""

    name: str
    op_class: str
    predicted_s: float
    """Alone, warm."""
    alone_s: float
    """The same, measured."""
    cold_s: float
    """Measured alone with nothing in cache."""
    inside_s: float
    """Measured within the network."""
    touches: tuple[Touch, ...]
    """Data that it reads and writes within the network (``network.residency``)."""


@dataclass(frozen=True)
class NetworkCell:
    """This is one network on one device."""

    network: str
    batch: int
    device: str
    schedule: str
    model: str
    """Name of the model that predicted the kernels."""
    held_out: bool
    """None of its tasks was trained on."""
    calls: tuple[CallCell, ...]
    samples_s: tuple[float, ...]
    """Seconds a run of the whole network, one a round."""
    planned_bytes: int
    activation_bytes: int
    eager_s: float | None
    """PyTorch on the same cores, eager; None where the source is no torch model."""
    host: str
    visits: int = 1
    """After how many, some time apart, these are the least times."""

    def with_visit(self, other: NetworkCell) -> NetworkCell:
        """Take the least of this one and a later visit; only the later one, where it ran other programs."""
        ran, runs = ([call.predicted_s for call in cell.calls] for cell in (self, other))
        if (self.model, ran) != (other.model, runs):
            return other
        calls = tuple(
            replace(
                one,
                alone_s=min(one.alone_s, two.alone_s),
                cold_s=min(one.cold_s, two.cold_s),
                inside_s=min(one.inside_s, two.inside_s),
            )
            for one, two in zip(self.calls, other.calls, strict=True)
        )
        eager = [seconds for seconds in (self.eager_s, other.eager_s) if seconds is not None]
        return replace(
            self,
            calls=calls,
            samples_s=(*self.samples_s, *other.samples_s),
            eager_s=min(eager, default=None),
            visits=self.visits + other.visits,
        )

    @property
    def measured_s(self) -> float:
        """Return the time of one run on a quiet machine, see ``network.measured.quiet_seconds``."""
        return quiet_seconds(self.samples_s, [call.inside_s for call in self.calls])

    @property
    def kernels_s(self) -> float:
        """Sum the kernels as predicted."""
        return sum(call.predicted_s for call in self.calls)

    @property
    def alone_s(self) -> float:
        """Sum the kernels as measured, each alone."""
        return sum(call.alone_s for call in self.calls)

    @property
    def inside_s(self) -> float:
        """Sum the kernels as measured within the network."""
        return sum(call.inside_s for call in self.calls)

    def beside_s(self, device: Device, cold: bool = True) -> float:
        """Compute seconds of launches, a run and (``cold``) far data by ``device``'s overheads, on one stream."""
        overheads = device.launch_overheads
        gaps = (overheads.run_s or 0.0) + len(self.calls) * (overheads.call_s or 0.0)
        return gaps + (self.cold_s(device) if cold else 0.0)

    def cold_s(self, device: Device) -> float:
        """Sum the extra seconds of all calls, because their data lies farther away."""
        levels = levels_of(device)
        return sum(cold_of(call.touches, device, levels, call.predicted_s) for call in self.calls)

    def errors(self, device: Device) -> dict[str, float]:
        """Compute relative errors: of the replay, of plain sums, and of the replay's parts (which add up)."""
        real = self.measured_s
        overhead = self.beside_s(device, cold=False)
        return {
            "replay": (self.kernels_s + self.beside_s(device)) / real - 1,
            "without_cold": (self.kernels_s + overhead) / real - 1,
            "sum": self.kernels_s / real - 1,
            "kernels": (self.kernels_s - self.alone_s) / real,
            "cold": (self.cold_s(device) - (self.inside_s - self.alone_s)) / real,
            "overhead": (overhead - (real - self.inside_s)) / real,
        }


def cell_path(out: Path, device: str, schedule: str, network: str, batch: int, other: str = "") -> Path:
    """Return the path of a cell. ``other``: name of the model, where it did not choose the programs."""
    name = "-".join(filter(None, (network, f"b{batch}", other)))
    return Path(out) / "cells" / device / schedule.replace(":", "-") / f"{name}.json"


def read_cells(out: Path) -> list[NetworkCell]:
    """Read all finished cells under ``out``; ``DataError`` names a file that is none."""
    return [read_cell(path) for path in sorted((Path(out) / "cells").rglob("*.json"))]


def read_cell(path: Path) -> NetworkCell:
    """Read a cell; ``DataError`` where the file is none."""
    stored = read_json(path)
    try:
        calls = tuple(
            CallCell(**{**call, "touches": tuple(Touch(**touch) for touch in call["touches"])})
            for call in stored["calls"]
        )
        return NetworkCell(**{**stored, "calls": calls, "samples_s": tuple(stored["samples_s"])})
    except (TypeError, KeyError) as error:
        raise DataError(f"{path} is no cell of a network evaluation ({error}): delete it") from error


def measure_cell(
    network: str, batch: int, device: Device, schedule: str, model: str | None, held_out: bool, progress: bool = True
) -> NetworkCell:
    """Predict, build and run one network of the zoo on this machine, and PyTorch next to it.

    ``CdmppError`` where any of it cannot be done.
    """
    runtime = CompiledRuntime(model, schedule)
    read = runtime.read(Workload(network, batch=batch), device)
    prepared = runtime.choose(read, device, progress)
    graph, chosen = read.graph, prepared.chosen
    measured = measured_here(read, {key: one.schedule for key, one in chosen.items()}, device)
    touched = touches(graph)
    calls = tuple(
        CallCell(
            call.name,
            graph.tasks[call.task_id].op_class,
            chosen[call.task_id].latency_s,
            measured.alone_s[call.task_id],
            measured.cold_s[call.task_id],
            measured.kernels_s[place],
            tuple(touched[place]),
        )
        for place, call in enumerate(graph.calls)
    )
    eager_s = _eager_s(read.source(), int(device.target.get("num-cores", 1)))
    planned, peak = measured.planned_bytes, peak_activation_bytes(graph, range(len(calls)))
    host = f"{processor()}, {os.cpu_count()} processors"
    return NetworkCell(
        network, batch, device.name, schedule, prepared.model, held_out, calls, measured.samples_s, planned, peak,
        eager_s, host,
    )  # fmt: skip


def predicted_again(cell: NetworkCell, device: Device, model: str, progress: bool = True) -> NetworkCell:
    """Predict the programs that were measured by another model.

    ``CdmppError`` where the model of ``cell`` has changed since, so that its programs are not known any more.
    """
    runtime = CompiledRuntime(cell.model, cell.schedule)
    first = runtime.choose(runtime.read(Workload(cell.network, batch=cell.batch), device), device, progress)
    keys = [call.task_id for call in first.read.graph.calls]
    if [first.chosen[key].latency_s for key in keys] != [call.predicted_s for call in cell.calls]:
        raise CdmppError(f"{cell.network}: {cell.model} is not what it was when the network was run; run it again")
    chosen = first.with_model(model, progress).chosen
    calls = [replace(call, predicted_s=chosen[key].latency_s) for call, key in zip(cell.calls, keys, strict=True)]
    return replace(cell, model=Path(model).name, calls=tuple(calls))


def _eager_s(source: Any, threads: int) -> float | None:
    import torch

    if source.torch_model is None or source.example is None:
        return None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            source.torch_model(*source.example)
            seconds = []
            for _ in range(_EAGER_RUNS):
                begin = time.perf_counter()
                source.torch_model(*source.example)
                seconds.append(time.perf_counter() - begin)
    finally:
        torch.set_num_threads(before)
    return min(seconds)
