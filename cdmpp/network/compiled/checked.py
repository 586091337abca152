"""A prediction beside what this machine measured of the same programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cdmpp.devices import Device
from cdmpp.network.compiled.choice import Chosen
from cdmpp.network.compiled.measured import MeasuredNetwork, measure_network
from cdmpp.network.compiled.stored_graph import ReadNetwork
from cdmpp.network.prediction import NetworkPrediction


def measured_beside(read: ReadNetwork, chosen: Mapping[str, Chosen], device: Device) -> MeasuredNetwork:
    """Build and run the network with the ``chosen`` programs on this machine, which must be ``device``."""
    source = read.source()
    inputs = None if source.example is None else tuple(value.detach().numpy() for value in source.example)
    schedules = {key: one.schedule for key, one in chosen.items()}
    return measure_network(source.module, read.graph, schedules, device, inputs)


def with_measured(
    answer: NetworkPrediction, read: ReadNetwork, chosen: Mapping[str, Chosen], device: Device
) -> NetworkPrediction:
    """``answer`` with the measured time of the network and of each of its kernels alone."""
    measured = measured_beside(read, chosen, device)
    kernels = tuple(replace(kernel, measured_s=measured.alone_s[kernel.task_id]) for kernel in answer.kernels)
    return replace(answer, kernels=kernels, measured_s=measured.latency_s)
