"""A prediction compared with what this machine measured of the same programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cdmpp.devices import Device
from cdmpp.network.compiled.measured import MeasuredNetwork, measure_network
from cdmpp.network.compiled.stored_graph import CompiledNetwork
from cdmpp.network.prediction import NetworkPrediction


def measured_here(read: CompiledNetwork, schedules: Mapping[str, str], device: Device) -> MeasuredNetwork:
    """Build and run the network on this machine, which must be ``device``; ``schedules``: of each task, by id."""
    source = read.source()
    inputs = None if source.example is None else tuple(value.detach().numpy() for value in source.example)
    return measure_network(source.module, read.graph, schedules, device, inputs)


def with_measured(prediction: NetworkPrediction, read: CompiledNetwork, device: Device) -> NetworkPrediction:
    """Add the measured time of the network and of each of its kernels by itself."""
    schedules = {kernel.task_id: kernel.schedule for kernel in prediction.kernels}
    measured = measured_here(read, schedules, device)
    kernels = tuple(replace(kernel, measured_s=measured.alone_s[kernel.task_id]) for kernel in prediction.kernels)
    return replace(prediction, kernels=kernels, measured_s=measured.latency_s)
