"""The prediction of a network from its priced and launched calls, whatever runtime they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdmpp.devices import Device
from cdmpp.network.liveness import peak_activation_bytes
from cdmpp.network.memory import with_memory_warning
from cdmpp.network.prediction import Bounds, KernelPrediction, NetworkPrediction
from cdmpp.network.runtime import LaunchedNetwork, PricedNetwork, ReadNetwork
from cdmpp.predict.flags import FLAGS, NO_MACHINE_CODE


def compose(priced: PricedNetwork, launched: LaunchedNetwork) -> NetworkPrediction:
    """Make the prediction; its first warning says where the network does not fit into the device's memory."""
    read, graph, timeline, overhead_s = priced.read, priced.read.graph, launched.timeline, launched.overhead_s
    alive = alive_bytes(read)
    intervals: Bounds = {}
    source = f"none: {priced.no_intervals}"
    if not priced.no_intervals:
        blind = [kernel for kernel in priced.kernels if NO_MACHINE_CODE in kernel.flags]
        apart = (sum(kernel.total_s for kernel in blind), summed(blind, 0.0)) if blind else (0.0, None)
        intervals, source = priced.errors.intervals(timeline.makespan_s, summed(priced.kernels, overhead_s), *apart)
    prediction = NetworkPrediction(
        network=graph.name,
        device=priced.device.name,
        model=priced.model,
        schedule=priced.schedule,
        kernels=priced.kernels,
        timeline=timeline,
        batch=read.batch,
        precision=read.precision,
        intervals=intervals,
        intervals_from=source,
        overhead_s=overhead_s,
        weight_bytes=graph.weight_bytes,
        input_bytes=graph.input_bytes,
        activation_bytes=alive,
        folded=graph.folded,
        by_datasheet=priced.by_datasheet,
        tokens=read.tokens,
        cache_bytes=read.cache_bytes,
        warnings=(*read.warnings, *priced.warnings, *launched.warnings, *flag_warnings(priced.kernels)),
    )
    return with_memory_warning(prediction, priced.device, None if read.step is None else read.step.peak_bytes)


def alive_bytes(read: ReadNetwork) -> int:
    """Return the most bytes of results alive at a time, in the order of the program."""
    if read.alive_bytes is not None:
        return read.alive_bytes
    return peak_activation_bytes(read.graph, range(len(read.graph.calls)))


def bound_of(flops: float, io_bytes: float, device: Device) -> str:
    """Return ``compute`` or ``memory``, whichever takes longer at the device's peak rates; empty if unknown.

    A CPU's program has the bandwidth of its cores, not that of the whole socket.
    """
    peak = device.spec["fp32_tflops"]
    bandwidth = device.spec["core_gbps"] if device.kind == "cpu" else device.spec["bandwidth_gbps"]
    if not peak or not bandwidth:
        return ""
    return "compute" if flops / (1e12 * peak) >= io_bytes / (1e9 * bandwidth) else "memory"


def summed(kernels: Sequence[KernelPrediction], overhead_s: float) -> Mapping[float, tuple[float, float]]:
    """Add up the ends of all calls' intervals by level, in seconds: as if all erred to the same side."""
    levels = set.intersection(*(set(kernel.intervals) for kernel in kernels)) if kernels else set()
    return {
        level: (
            overhead_s + sum(kernel.count * (kernel.intervals[level][0] + kernel.cold_s) for kernel in kernels),
            overhead_s + sum(kernel.count * (kernel.intervals[level][1] + kernel.cold_s) for kernel in kernels),
        )
        for level in sorted(levels)
    }


def flag_warnings(kernels: Sequence[KernelPrediction]) -> list[str]:
    """Say what share of the time of all kernels has which flags, a sentence a flag."""
    total = sum(kernel.total_s for kernel in kernels) or 1.0
    found = []
    for flag, meaning in FLAGS.items():
        if flagged := [kernel for kernel in kernels if flag in kernel.flags]:
            share = sum(kernel.total_s for kernel in flagged) / total
            found.append(f"{len(flagged)} of {len(kernels)} kernels, {share:.0%} of the time: {flag}: {meaning}")
    return found
