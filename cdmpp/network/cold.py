"""What a kernel takes longer in a network than alone: its data lies farther away.

A kernel timed alone finds all of it in the smallest cache that holds what it touches. In a network a buffer lies as far
away as what was touched since. Bytes that come from farther are paid at the rate of that level, less what the kernel
hides behind its own work (``Engines.exposed_share``, fitted on measured networks).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.devices import Device
from cdmpp.network.graph import NetworkGraph
from cdmpp.network.residency import footprint_bytes, touches


@dataclass(frozen=True)
class Level:
    """A cache, or memory behind all of them."""

    bytes: float
    seconds_per_byte: float
    """For one core to read from it."""


def levels_of(device: Device) -> tuple[Level, ...]:
    """From the nearest that a network's buffers may lie in to memory; empty where bandwidths are not described."""
    spec = device.spec
    clock_hz = 1e6 * (spec["clock_mhz"] or 0.0)
    if device.kind == "cpu":
        memory, cycles = spec["core_gbps"], (spec["l2_bytes_per_cycle"], spec["l3_bytes_per_cycle"])
        sizes = (spec["l2_kb"], spec["l3_kb"])
        if not memory or not clock_hz or not all(cycles) or not all(sizes):
            return ()
        cores = spec["core_count"] or 1.0
        caches = [
            Level(1024 * size * (cores if i == 0 else 1), 1 / (rate * clock_hz * cores))
            for i, (size, rate) in enumerate(zip(sizes, cycles, strict=True))
            if size and rate
        ]
        return (*caches, Level(math.inf, 1e-9 / memory))
    if not spec["bandwidth_gbps"] or not spec["l2_kb"]:
        return ()
    # What lies in a GPU's second level costs nothing beyond what the kernel alone took.
    return Level(1024 * spec["l2_kb"], 0.0), Level(math.inf, 1e-9 / spec["bandwidth_gbps"])


def far_seconds(graph: NetworkGraph, device: Device) -> list[float]:
    """(n calls) seconds to fetch what lies farther away than where the kernel alone would find it."""
    levels = levels_of(device)
    if not levels:
        return [0.0] * len(graph.calls)

    def level(distance: float) -> Level:
        return next(one for one in levels if distance <= one.bytes)

    found = []
    for place, seen in enumerate(touches(graph)):
        alone = level(footprint_bytes(graph, place)).seconds_per_byte
        found.append(
            sum(touch.bytes * max(0.0, level(touch.since + touch.bytes).seconds_per_byte - alone) for touch in seen)
        )
    return found


def least_seconds(graph: NetworkGraph, device: Device) -> list[float]:
    """(n calls) what a call needs at least: all that it touches comes from memory where no cache holds it."""
    levels = levels_of(device)
    if device.kind != "cpu" or not levels:
        return [0.0] * len(graph.calls)
    sizes = [footprint_bytes(graph, place) for place in range(len(graph.calls))]
    return [levels[-1].seconds_per_byte * size if size > levels[-2].bytes else 0.0 for size in sizes]


def cold_seconds(graph: NetworkGraph, device: Device, alone_s: Sequence[float]) -> list[float]:
    """(n calls) seconds that each call takes longer than ``alone_s`` (n calls), which is what the model predicts.

    Zeros where the device's share was never measured.
    """
    if (share := device.engines.exposed_share) is None:
        return [0.0] * len(graph.calls)
    far, least = far_seconds(graph, device), least_seconds(graph, device)
    return [max(share * f, floor - alone) for f, floor, alone in zip(far, least, alone_s, strict=True)]
