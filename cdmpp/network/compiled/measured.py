"""A network that is really run on this machine: its whole time, each kernel within it, the memory that is planned."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.measure.build import arguments_of
from cdmpp.network.compiled.worker import COMMAND
from cdmpp.network.graph import NetworkGraph
from cdmpp.platform.workers import Reply, Worker
from cdmpp.programs.sampling import NO_SCHEDULE

SHORT_S = 0.02
"""The best of many runs of a network below this is one that nothing disturbed."""
_LIMIT_S = 900.0
_VISIT_S = 4.0
"""Seconds for which the whole network runs at each visit; it runs at least twice."""


@dataclass(frozen=True)
class MeasuredNetwork:
    """One network has these times and this memory, measured on one device."""

    samples_s: tuple[float, ...]
    """Seconds a run, one a round."""
    kernels_s: tuple[float, ...]
    """Seconds of each call of the graph within the network, least of many runs; looking costs about 1 us a call."""
    planned_bytes: int
    """Bytes that the virtual machine allocates for results."""
    alone_s: Mapping[str, float]
    """Task id -> seconds of its kernel by itself, its data in cache; empty where that was not requested."""
    cold_s: Mapping[str, float]
    """The same with nothing of it in cache."""

    @property
    def latency_s(self) -> float:
        """Return seconds of one run on a quiet machine: see ``quiet_seconds``."""
        return quiet_seconds(self.samples_s, self.kernels_s)


def quiet_seconds(samples_s: Sequence[float], kernels_s: Sequence[float]) -> float:
    """Estimate one run on a quiet machine; other guests of the host only ever add to it.

    The least of all rounds. A run of a tenth of a second is seldom quiet throughout, but its kernels are: of longer
    ones the sum of what each call took at least, where that is less.
    """
    least = min(samples_s)
    return least if least < SHORT_S else min(least, sum(kernels_s))


def measure_network(
    module: Any,
    graph: NetworkGraph,
    schedules: Mapping[str, str],
    device: Device,
    inputs: tuple[np.ndarray, ...] | None = None,
    visits: int = 2,
    alone: bool = True,
) -> MeasuredNetwork:
    """Build ``module`` with ``schedules`` (task id -> trace) as it is deployed, and run it on this machine's cores.

    Raises:
        CdmppError: the device is no CPU, has more cores than are here, or the network does not build or run.
    """
    here, threads = check_is_here(device), int(device.target.get("num-cores", 1))
    worker = Worker(COMMAND, here[-threads:])
    with tempfile.TemporaryDirectory(prefix="cdmpp-") as scratch:
        try:
            import tvm

            path, arrays = Path(scratch) / "module.json", Path(scratch) / "inputs.npz"
            path.write_text(tvm.ir.save_json(module))
            if inputs is not None:
                np.savez(arrays, **{str(i): value for i, value in enumerate(inputs)})  # type: ignore[arg-type]
            programs = {
                name: [graph.tasks[call.task_id].workload, schedules[call.task_id]]
                for call in graph.calls
                if schedules[call.task_id] != NO_SCHEDULE
                for name in (call.name.rpartition("#")[0],)
            }
            request = {"op": "build", "module": str(path), "schedules": programs, "target": dict(device.target)}
            _checked(worker.request({**request, "inputs": str(arrays) if inputs is not None else ""}, _LIMIT_S), graph)
            samples: list[float] = []
            alone_s: dict[str, float] = {}
            cold_s: dict[str, float] = {}
            for visit in range(visits):
                if alone:  # between the visits to the whole, so that these lie apart
                    for key, reply in _alone(worker, graph, schedules, device, flush=not visit):
                        alone_s[key] = min(alone_s.get(key, math.inf), reply["warm"])
                        cold_s |= {key: reply["cold"]} if "cold" in reply else {}
                samples += _checked(worker.request({"op": "run", "within_s": _VISIT_S}, _LIMIT_S), graph)["samples"]
            looked = _checked(worker.request({"op": "inside", "within_s": 2 * _VISIT_S}, _LIMIT_S), graph)
        finally:
            worker.stop()
    names, expected = [name for name, _ in looked["kernels"]], [call.name.rpartition("#")[0] for call in graph.calls]
    if names != expected:
        pairs = zip_longest(names, expected, fillvalue="nothing")
        found, wanted = next((one, other) for one, other in pairs if one != other)
        raise CdmppError(
            f"{graph.name}: the network that was built calls {len(names)} kernels where its graph has {len(expected)}; "
            f"the first that differs is {found} instead of {wanted}"
        )
    kernels = tuple(float(seconds) for _, seconds in looked["kernels"])
    return MeasuredNetwork(tuple(samples), kernels, int(looked["planned_bytes"]), alone_s, cold_s)


def check_is_here(device: Device) -> list[int]:
    """Return the cores that this process may use; ``CdmppError`` where networks of ``device`` cannot run on them."""
    threads, here = int(device.target.get("num-cores", 1)), sorted(os.sched_getaffinity(0))
    if device.kind != "cpu" or threads > len(here):
        raise CdmppError(
            f"{device.name} cannot be measured here: it is a {device.kind} with {threads} cores for a program, this "
            f"machine is a CPU with {len(here)}"
        )
    return here


def _alone(
    worker: Worker, graph: NetworkGraph, schedules: Mapping[str, str], device: Device, flush: bool
) -> Iterator[tuple[str, Reply]]:
    flush_bytes = flush * int(2048 * (device.spec["l3_kb"] or device.spec["l2_kb"] or 32_768))
    asked = {"op": "alone", "target": dict(device.target), "flush_bytes": flush_bytes}
    for key, task in graph.tasks.items():
        program = {"workload": task.workload, "schedule": schedules[key], "arguments": arguments_of(task.workload)}
        yield key, _checked(worker.request({**asked, **program}, _LIMIT_S), graph)


def _checked(reply: Reply, graph: NetworkGraph) -> Reply:
    if "cause" in reply:
        raise CdmppError(f"{graph.name} could not be run: {reply.get('message') or reply['cause']}")
    return reply
