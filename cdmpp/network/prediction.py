"""NetworkPrediction: the time of a whole network, with what it is made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cdmpp.platform.files import plain
from cdmpp.simulate.timeline import Span, Timeline

LEVEL = 0.8
"""Level of the interval that is shown, where there is one of that level."""
Bounds = Mapping[float, tuple[float, float]]
"""Level -> lower and upper bound in seconds."""


@dataclass(frozen=True)
class KernelPrediction:
    """This is one tensor program of a network, which may be called several times."""

    task_id: str
    name: str
    op_class: str
    count: int
    """Calls in one run of the network."""
    latency_s: float
    """One call, its data in cache: what the model predicts."""
    cold_s: float
    """Extra seconds of one call, on average over its calls, for data that is no longer in cache."""
    intervals: Bounds
    """Intervals of ``latency_s``; empty where the model has none."""
    flops: float
    io_bytes: float
    """Bytes of inputs, weights and outputs of one call."""
    bound: str
    """``compute`` or ``memory``: what the device's peak rates say; empty where they are not known."""
    candidates: int
    """Schedules among which this one was chosen by prediction; 1: there was no choice."""
    schedule: str = ""
    """Trace as JSON ``[instructions, decisions]``; empty: not scheduled."""
    flags: tuple[str, ...] = ()
    """Names in ``predict.flags.FLAGS``."""
    measured_s: float | None = None
    """One call, timed alone on the device; None unless it was requested."""
    stands_for: str = ""
    """Operator that nobody measured and that this program is the answer for; empty: it is itself."""

    @property
    def total_s(self) -> float:
        """All calls in one run of the network take so long."""
        return self.count * (self.latency_s + self.cold_s)


@dataclass(frozen=True)
class NetworkPrediction:
    """This is one run of a network on one device."""

    network: str
    device: str
    model: str
    schedule: str
    """Rule by which programs were chosen: ``best_of:16``, ``untuned`` or ``database:DIR``."""
    kernels: tuple[KernelPrediction, ...]
    """The kernels, in the order in which the network calls them first."""
    timeline: Timeline
    """A span a call, named ``kernel#place``, its label the op class."""
    batch: int
    """Examples in one run; 1 where that is not known."""
    intervals: Bounds
    """Intervals of ``latency_s``."""
    intervals_from: str
    """The source of the intervals, in a sentence."""
    overhead_s: float
    """Seconds of a run that are not those of its kernels: launches and the framework."""
    weight_bytes: int
    input_bytes: int
    activation_bytes: int
    """Most bytes of results alive at a time."""
    folded: int
    """Kernels that read only weights: they run once, when the network is deployed, and are not counted."""
    warnings: tuple[str, ...] = field(default_factory=tuple)
    """Warnings to read before trusting the number, a sentence each."""
    measured_s: float | None = None
    """The same programs run as a network on the device; None unless that was requested."""
    precision: str = ""
    """Name of the precision of PyTorch's own kernels; empty where programs say their types."""
    by_datasheet: bool = False
    """True if the model knows the device only by its datasheet."""
    tokens: int | None = None
    """Tokens that a language model reads as a prompt, or makes, in one run; None: it is no such run."""
    cache_bytes: int = 0
    """Bytes of its cache of keys and values after the run, which are among those of inputs and results."""

    @property
    def tokens_per_s(self) -> float | None:
        """It reads or makes so many tokens a second, those of all examples; None where it is no such run."""
        return self.tokens / self.latency_s if self.tokens and self.latency_s else None

    @property
    def latency_s(self) -> float:
        """One run of the network takes so long."""
        return self.timeline.makespan_s

    @property
    def kernels_s(self) -> float:
        """This is the sum of all kernels as they run alone, their data in cache."""
        return sum(kernel.count * kernel.latency_s for kernel in self.kernels)

    @property
    def cold_s(self) -> float:
        """All calls take so much longer for data that is no longer in cache."""
        return sum(kernel.count * kernel.cold_s for kernel in self.kernels)

    @property
    def peak_bytes(self) -> int:
        """This sums weights, inputs and the most bytes of results alive at a time."""
        return self.weight_bytes + self.input_bytes + self.activation_bytes

    @property
    def work_s(self) -> float:
        """All calls and the overhead take so long, one after the other."""
        return self.kernels_s + self.cold_s + self.overhead_s

    @property
    def shown_level(self) -> float | None:
        """The interval of this level is shown: ``LEVEL``, else the lowest; None without intervals."""
        return best_level({*self.intervals, *(level for kernel in self.kernels for level in kernel.intervals)})

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each kernel, most total time first; units are in the names of the keys.

        ``share`` is that of all kernels and the overhead; without kernels side by side it is the share of the latency.
        """
        whole_s, level = self.work_s, self.shown_level
        return [_row(kernel, whole_s, level) for kernel in self._ordered]

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, as JSON takes them."""
        timeline, latency = self.timeline, self.latency_s
        spent, critical = _busy_s(timeline.spans.values()), _busy_s(timeline.critical_path)
        names = ("network", "device", "model", "schedule", "batch", "latency_s", "intervals_from", "kernels_s",
                 "cold_s", "overhead_s", "weight_bytes", "input_bytes", "activation_bytes", "peak_bytes", "folded",
                 "measured_s")  # fmt: skip
        bounds = [{"intervals_s": _levels(kernel.intervals)} for kernel in self._ordered]
        rows = [{**row, **more} for row, more in zip(self.table(), bounds, strict=True)]
        busy_s, idle_s = timeline.busy_s, timeline.idle_s
        return plain({
            **{name: getattr(self, name) for name in names},
            "intervals_s": _levels(self.intervals),
            "throughput_per_s": self.batch / latency if latency else None,
            "tokens": self.tokens,
            "tokens_per_s": self.tokens_per_s,
            "cache_bytes": self.cache_bytes,
            "calls": sum(kernel.count for kernel in self.kernels),
            "resources": {name: {"busy_s": busy_s[name], "idle_s": idle_s[name]} for name in sorted(busy_s)},
            "critical_path_share": critical / spent if spent else None,
            "warnings": list(self.warnings),
            "kernels": rows,
        })  # fmt: skip

    @property
    def _ordered(self) -> list[KernelPrediction]:
        return sorted(self.kernels, key=lambda kernel: -kernel.total_s)


def best_level(levels: Collection[float]) -> float | None:
    """Return ``LEVEL`` where it is among them, else the lowest."""
    return LEVEL if LEVEL in levels else min(levels, default=None)


def _busy_s(spans: Iterable[Span]) -> float:
    """Seconds of calls; what stands for the overhead holds no resource."""
    return sum(span.end_s - span.start_s for span in spans if span.task.resources)


def _row(kernel: KernelPrediction, whole_s: float, level: float | None) -> dict[str, Any]:
    low, high = kernel.intervals.get(level, (None, None)) if level is not None else (None, None)
    return {
        "kernel": kernel.name,
        "op_class": kernel.op_class or "other",
        "count": kernel.count,
        "latency_s": kernel.latency_s,
        "interval_low_s": low,
        "interval_high_s": high,
        "cold_s": kernel.cold_s,
        "total_s": kernel.total_s,
        "share": kernel.total_s / whole_s if whole_s else 0.0,
        "flops": kernel.flops,
        "io_bytes": kernel.io_bytes,
        "flops_per_s": kernel.flops / kernel.latency_s if kernel.latency_s else None,
        "bound": kernel.bound,
        "candidates": kernel.candidates,
        "flags": list(kernel.flags),
        "measured_s": kernel.measured_s,
        "task_id": kernel.task_id,
        "stands_for": kernel.stands_for,
    }


def _levels(bounds: Bounds) -> dict[str, list[float]]:
    return {str(level): list(pair) for level, pair in bounds.items()}
