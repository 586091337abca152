"""Report: what a network prediction says in rows and totals, and the files that hold them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.errors import CdmppError
from cdmpp.platform.files import plain, write_atomic
from cdmpp.units import percent, quantity, span, visible

if TYPE_CHECKING:
    from cdmpp.network.prediction import KernelPrediction, NetworkPrediction
    from cdmpp.simulate.timeline import Span

LEVEL = 0.8
"""Of the interval that is shown, where there is one of that level."""
Row = dict[str, Any]
COLUMNS: dict[str, tuple[str, Callable[[Row], str]]] = {
    "kernel": ("kernel", lambda row: visible(row["kernel"])),
    "op class": ("op_class", lambda row: visible(row["op_class"])),
    "calls": ("count", lambda row: str(row["count"])),
    "total": ("total_s", lambda row: quantity(row["total_s"], "s")),
    "share": ("share", lambda row: percent(row["share"])),
    "one call": ("latency_s", lambda row: quantity(row["latency_s"], "s")),
    "interval": ("interval_low_s", lambda row: _interval(row)),
    "cold extra": ("cold_s", lambda row: quantity(row["cold_s"], "s")),
    "work": ("flops", lambda row: quantity(row["flops"], "FLOP")),
    "data": ("io_bytes", lambda row: quantity(row["io_bytes"], "B")),
    "rate": ("flops_per_s", lambda row: quantity(row["flops_per_s"], "FLOP/s")),
    "bound by": ("bound", lambda row: row["bound"] or "-"),
    "measured": ("measured_s", lambda row: quantity(row["measured_s"], "s")),
    "flags": ("flags", lambda row: ", ".join(row["flags"])),
}
"""Heading of a shown table -> key in ``table`` and text of a row."""
TEXTS = ("kernel", "op class", "bound by", "flags")
"""Headings whose columns hold no numbers."""


def table(prediction: NetworkPrediction) -> list[Row]:
    """A row a kernel, most total time first; units are in the names of the keys.

    ``share`` is of all kernels and the overhead; without kernels side by side that is the share of the latency.
    """
    whole, level = work_s(prediction), shown_level(prediction)
    return [_row(kernel, whole, level) for kernel in _ordered(prediction)]


def work_s(prediction: NetworkPrediction) -> float:
    """Seconds of all calls and the overhead, one after the other."""
    return prediction.kernels_s + prediction.cold_s + prediction.overhead_s


def shown_level(prediction: NetworkPrediction) -> float | None:
    """The level of the interval that is shown: ``LEVEL``, else the lowest; None without intervals."""
    return best_level({*prediction.intervals, *(level for kernel in prediction.kernels for level in kernel.intervals)})


def best_level(levels: Collection[float]) -> float | None:
    """``LEVEL`` where it is among them, else the lowest."""
    return LEVEL if LEVEL in levels else min(levels, default=None)


def headings(rows: list[Row]) -> list[str]:
    """Those of ``COLUMNS`` that say something of ``rows``."""
    optional = ("interval_low_s", "cold_s", "measured_s", "flags", "bound")
    return [name for name, (key, _) in COLUMNS.items() if key not in optional or any(row[key] for row in rows)]


def by_class(prediction: NetworkPrediction) -> dict[str, float]:
    """Op class -> seconds of all its calls, most first."""
    totals: dict[str, float] = {}
    for kernel in prediction.kernels:
        totals[kernel.op_class or "other"] = totals.get(kernel.op_class or "other", 0.0) + kernel.total_s
    return dict(sorted(totals.items(), key=lambda entry: -entry[1]))


def as_dict(prediction: NetworkPrediction) -> dict[str, Any]:
    """All numbers as JSON takes them."""
    timeline, latency = prediction.timeline, prediction.latency_s
    spent, critical = _busy_s(timeline.spans.values()), _busy_s(timeline.critical_path)
    names = ("network", "device", "model", "schedule", "batch", "latency_s", "intervals_from", "kernels_s", "cold_s",
             "overhead_s", "weight_bytes", "input_bytes", "activation_bytes", "peak_bytes", "folded",
             "measured_s")  # fmt: skip
    bounds = [{"intervals_s": _levels(kernel.intervals)} for kernel in _ordered(prediction)]
    rows = [{**row, **more} for row, more in zip(table(prediction), bounds, strict=True)]
    return plain({
        **{name: getattr(prediction, name) for name in names},
        "intervals_s": _levels(prediction.intervals),
        "throughput_per_s": prediction.batch / latency if latency else None,
        "calls": sum(kernel.count for kernel in prediction.kernels),
        "resources": {
            name: {"busy_s": busy, "idle_s": timeline.idle_s[name]} for name, busy in sorted(timeline.busy_s.items())
        },
        "critical_path_share": critical / spent if spent else None,
        "warnings": list(prediction.warnings),
        "kernels": rows,
    })  # fmt: skip


def to_frame(prediction: NetworkPrediction) -> Any:
    """``table`` as a pandas DataFrame."""
    return frame_of(table(prediction))


def frame_of(rows: list[Row]) -> Any:
    """A pandas DataFrame; ``CdmppError`` where pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise CdmppError("a data frame needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows)


def save_csv(prediction: NetworkPrediction, path: str | Path) -> Path:
    """Write ``table``, atomically. Texts that a spreadsheet would run as formulas get an apostrophe before them."""
    rows, path = table(prediction), Path(path)
    keys = list(rows[0]) if rows else [key for key, _ in COLUMNS.values()]

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(keys)
            writer.writerows([_cell(row[key]) for key in keys] for row in rows)

    write_atomic(path, write)
    return path


def save_trace(prediction: NetworkPrediction, path: str | Path) -> Path:
    """Write the timeline for chrome://tracing and ui.perfetto.dev, atomically."""
    text, path = json.dumps(prediction.timeline.chrome_trace()), Path(path)
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path


def _busy_s(spans: Iterable[Span]) -> float:
    """Seconds of calls; what stands for the overhead holds no resource."""
    return sum(span.end_s - span.start_s for span in spans if span.task.resources)


def _ordered(prediction: NetworkPrediction) -> list[KernelPrediction]:
    return sorted(prediction.kernels, key=lambda kernel: -kernel.total_s)


def _row(kernel: KernelPrediction, whole_s: float, level: float | None) -> Row:
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
    }


def _interval(row: Row) -> str:
    return "-" if row["interval_low_s"] is None else span(row["interval_low_s"], row["interval_high_s"], "s")


def _levels(bounds: Mapping[float, tuple[float, float]]) -> dict[str, list[float]]:
    return {str(level): list(pair) for level, pair in bounds.items()}


def _cell(value: Any) -> Any:
    text = "; ".join(value) if isinstance(value, list) else value
    return f"'{text}" if isinstance(text, str) and text[:1] in ("=", "+", "-", "@", "\t") else text
