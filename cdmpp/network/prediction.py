"""NetworkPrediction: the time of a whole network, with what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.simulate.timeline import Timeline

Bounds = Mapping[float, tuple[float, float]]
"""Level -> lower and upper bound in seconds."""


@dataclass(frozen=True)
class KernelPrediction:
    """One tensor program of a network, which may be called several times."""

    task_id: str
    name: str
    op_class: str
    count: int
    """Calls in one run of the network."""
    latency_s: float
    """One call, its data in cache: what the model predicts."""
    cold_s: float
    """What one call takes longer, on average over its calls, for data that is no longer in cache."""
    intervals: Bounds
    """Of ``latency_s``; empty where the model has none."""
    flops: float
    io_bytes: float
    """Of one call; bytes of inputs, weights and outputs."""
    bound: str
    """``compute`` or ``memory``: what the device's peak rates say; empty where they are not known."""
    candidates: int
    """Schedules among which this one was chosen by prediction; 1: there was no choice."""
    schedule: str = ""
    """Trace as JSON ``[instructions, decisions]``; empty: not scheduled."""
    flags: tuple[str, ...] = ()
    """Names in ``predict.flags.FLAGS``."""
    measured_s: float | None = None
    """One call, timed alone on the device, where that was asked for."""

    @property
    def total_s(self) -> float:
        """All calls in one run of the network."""
        return self.count * (self.latency_s + self.cold_s)


@dataclass(frozen=True)
class NetworkPrediction:
    """One run of a network on one device."""

    network: str
    device: str
    model: str
    schedule: str
    """How programs were chosen: ``best_of:16``, ``untuned`` or ``database:DIR``."""
    kernels: tuple[KernelPrediction, ...]
    """In the order in which the network calls them first."""
    timeline: Timeline
    """A span a call, named ``kernel#place``, its label the op class."""
    batch: int
    """Examples in one run; 1 where that cannot be told."""
    intervals: Bounds
    """Of ``latency_s``."""
    intervals_from: str
    """How they were made, in a sentence."""
    overhead_s: float
    """What a run takes beside its kernels: launches and the framework."""
    weight_bytes: int
    input_bytes: int
    activation_bytes: int
    """Most bytes of results alive at a time."""
    folded: int
    """Kernels that read weights alone: they run once, when the network is deployed, and are not counted."""
    warnings: tuple[str, ...] = field(default_factory=tuple)
    """What to know before trusting the number, a sentence each."""
    measured_s: float | None = None
    """The same programs run as a network on the device, where that was asked for."""

    @property
    def latency_s(self) -> float:
        """One run of the network."""
        return self.timeline.makespan_s

    @property
    def kernels_s(self) -> float:
        """Sum of all kernels as they run alone, their data in cache."""
        return sum(kernel.count * kernel.latency_s for kernel in self.kernels)

    @property
    def cold_s(self) -> float:
        """What all calls take longer for data that is no longer in cache."""
        return sum(kernel.count * kernel.cold_s for kernel in self.kernels)

    @property
    def peak_bytes(self) -> int:
        """Weights, inputs and the most bytes of results alive at a time."""
        return self.weight_bytes + self.input_bytes + self.activation_bytes

    def summary(self) -> str:
        """Some lines: the latency with its interval, what it is made of, the memory."""
        from cdmpp.report.summary import summary

        return summary(self)

    def table(self) -> list[dict[str, Any]]:
        """A row a kernel, most total time first; units are in the names of the keys."""
        from cdmpp.report.report import table

        return table(self)

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as JSON takes them."""
        from cdmpp.report.report import as_dict

        return as_dict(self)

    def to_frame(self) -> Any:
        """``table`` as a pandas DataFrame; ``CdmppError`` where pandas is not installed."""
        from cdmpp.report.report import to_frame

        return to_frame(self)

    def save_csv(self, path: str | Path) -> Path:
        """Write ``table``; ``CdmppError`` where that cannot be."""
        from cdmpp.report.report import save_csv

        return save_csv(self, path)

    def save_trace(self, path: str | Path) -> Path:
        """Write the timeline for ui.perfetto.dev or chrome://tracing; ``CdmppError`` where that cannot be."""
        from cdmpp.report.report import save_trace

        return save_trace(self, path)

    def save_html(self, path: str | Path) -> Path:
        """Write a report with charts, one file that needs no network; ``CdmppError`` where that cannot be."""
        from cdmpp.report.page import save_html

        return save_html(self, path)

    def _repr_html_(self) -> str:
        from cdmpp.report.page import notebook_html

        return notebook_html(self)
