"""Summary: a network prediction in a few lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdmpp.report.report import best_level, work_s
from cdmpp.units import percent, quantity, span, visible

if TYPE_CHECKING:
    from cdmpp.network.prediction import Bounds, NetworkPrediction


def summary(prediction: NetworkPrediction) -> str:
    """Some lines: what was asked, the latency, what it is made of, the memory."""
    calls = sum(kernel.count for kernel in prediction.kernels)
    title = f"{prediction.network} on {prediction.device}, batch {prediction.batch}, model {prediction.model}"
    whole = work_s(prediction)
    made = ", ".join(
        f"{name} {quantity(seconds, 's')}" + (f" ({percent(seconds / whole)})" if whole and seconds >= 0 else "")
        for name, seconds in parts(prediction).items()
    )
    lines = [
        visible(f"{title}, schedule {prediction.schedule}"),
        f"latency    {latency_text(prediction)}",
        f"interval   {origin_text(prediction)}",
        f"throughput {throughput_text(prediction)}",
        f"time       {made}",
        f"calls      {calls} of {len(prediction.kernels)} kernels" + _folded(prediction),
        f"memory     {memory_text(prediction)}",
    ]
    if prediction.measured_s:
        lines.insert(2, f"measured   {measured_text(prediction)}")
    return "\n".join(lines)


def latency_text(prediction: NetworkPrediction) -> str:
    """With the interval, where there is one."""
    return quantity(prediction.latency_s, "s", 4) + interval_text(prediction.intervals)


def origin_text(prediction: NetworkPrediction) -> str:
    """Where the interval comes from, or why there is none."""
    told = prediction.intervals_from.rstrip(".")
    return f"from {told}" if prediction.intervals else f"none: {told.removeprefix('there are none: ')}"


def interval_text(intervals: Bounds) -> str:
    """Of the level that is shown, in brackets; empty without."""
    level = best_level(intervals)
    return "" if level is None else f" ({100 * level:g} %: {span(*intervals[level], 's')})"


def throughput_text(prediction: NetworkPrediction) -> str:
    """Examples a second, with the interval, where there is one."""
    batch, level = prediction.batch, best_level(prediction.intervals)
    text = rate(batch, prediction.latency_s)
    if level is None:
        return text
    low_s, high_s = prediction.intervals[level]
    return f"{text} ({100 * level:g} %: {rate(batch, high_s, '')} - {rate(batch, low_s)})"


def rate(batch: int, latency_s: float, unit: str = "/s") -> str:
    """``(1, 0.00123)`` -> ``813/s``: three digits, or all before the point."""
    value = batch / latency_s if latency_s > 0 else 0.0
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"


def measured_text(prediction: NetworkPrediction) -> str:
    """With how far the prediction lies from it."""
    measured = prediction.measured_s or 0.0
    off = 100 * (prediction.latency_s / measured - 1) if measured else 0.0
    return f"{quantity(measured, 's', 4)} (predicted is {abs(off):.1f} % {'more' if off >= 0 else 'less'})"


def memory_text(prediction: NetworkPrediction) -> str:
    """What must be held at a time, and of what it is made."""
    sizes = {"weights": prediction.weight_bytes, "inputs": prediction.input_bytes}
    sizes["results at a time"] = prediction.activation_bytes
    made = ", ".join(f"{name} {quantity(size, 'B')}" for name, size in sizes.items())
    return f"{quantity(prediction.peak_bytes, 'B')} ({made})"


def parts(prediction: NetworkPrediction) -> dict[str, float]:
    """What the latency is made of, in seconds; ``side by side`` is negative: what overlaps is no loss of time."""
    made = {"kernels": prediction.kernels_s, "cold caches": prediction.cold_s, "overhead": prediction.overhead_s}
    rest = prediction.latency_s - work_s(prediction)
    if abs(rest) > 5e-3 * prediction.latency_s:
        made["side by side" if rest < 0 else "waiting"] = rest
    return made


def _folded(prediction: NetworkPrediction) -> str:
    return f"; {prediction.folded} more run once, when it is deployed" if prediction.folded else ""
