"""The extra seconds of a kernel in a network, because its data lies farther away than when it runs alone.

A kernel timed alone finds all of it in the smallest cache that holds what it touches. In a network a buffer lies as far
away as what was touched since. Bytes that come from farther are paid at the rate of that level, less what the kernel
hides behind its own work (``LaunchOverheads.exposed_share``, fitted on measured networks).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.devices import Device
from cdmpp.network.compiled.residency import Touch, touches
from cdmpp.network.graph import NetworkGraph


@dataclass(frozen=True)
class Level:
    """A level is a cache, or memory behind all of them."""

    bytes: float
    seconds_per_byte: float
    """Seconds in which one core reads a byte from it."""


def levels_of(device: Device) -> tuple[Level, ...]:
    """List the nearest level that a network's buffers may lie in to memory; empty where no bandwidth is described.

    Of the last cache only what the device's launch overheads say is its own.
    """
    spec, own = device.spec, device.launch_overheads.resident_bytes or math.inf
    clock_hz = 1e6 * (spec["clock_mhz"] or 0.0)
    if device.kind == "cpu":
        memory, cycles = spec["core_gbps"], (spec["l2_bytes_per_cycle"], spec["l3_bytes_per_cycle"])
        sizes = (spec["l2_kb"], spec["l3_kb"])
        if not memory or not clock_hz or not all(cycles) or not all(sizes):
            return ()
        cores = spec["core_count"] or 1.0
        caches = [
            Level(min(own, 1024 * size * (cores if i == 0 else 1)), 1 / (rate * clock_hz * cores))
            for i, (size, rate) in enumerate(zip(sizes, cycles, strict=True))
            if size and rate
        ]
        return (*caches, Level(math.inf, 1e-9 / memory))
    if not spec["bandwidth_gbps"] or not spec["l2_kb"]:
        return ()
    # What lies in a GPU's second level costs nothing beyond what the kernel alone took.
    return Level(1024 * spec["l2_kb"], 0.0), Level(math.inf, 1e-9 / spec["bandwidth_gbps"])


def far_of(touched: Sequence[Touch], levels: Sequence[Level]) -> float:
    """Compute seconds to fetch what lies farther away than where the kernel alone would find it."""

    def level(distance: float) -> Level:
        return next(one for one in levels if distance <= one.bytes)

    if not levels:
        return 0.0
    alone = level(sum(touch.bytes for touch in touched)).seconds_per_byte
    return sum(touch.bytes * max(0.0, level(touch.since + touch.bytes).seconds_per_byte - alone) for touch in touched)


def cold_of(touched: Sequence[Touch], device: Device, levels: Sequence[Level], alone_s: float) -> float:
    """Compute the seconds that a call takes longer than ``alone_s``, which is what the model predicts.

    A call needs at least the time in which all that it touches comes from memory, where no cache of a CPU holds it.
    Zero where the device's share was never measured. ``levels``: those of the device.
    """
    if (share := device.launch_overheads.exposed_share) is None or not levels:
        return 0.0
    size, least = sum(touch.bytes for touch in touched), 0.0
    if device.kind == "cpu" and size > levels[-2].bytes:
        least = levels[-1].seconds_per_byte * size
    return max(share * far_of(touched, levels), least - alone_s)


def cold_seconds(graph: NetworkGraph, device: Device, alone_s: Sequence[float]) -> list[float]:
    """Compute ``cold_of`` each call, (n calls); ``alone_s`` (n calls)."""
    levels = levels_of(device)
    return [cold_of(seen, device, levels, alone) for seen, alone in zip(touches(graph), alone_s, strict=True)]
