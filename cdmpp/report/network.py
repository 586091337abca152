"""The report on a whole network: its time by part and kernel, the roofline, what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdmpp import devices
from cdmpp.errors import UnknownDeviceError
from cdmpp.network.prediction import Bounds, NetworkPrediction, best_level
from cdmpp.report.charts import Bar, Bars, Chart, Plot, against_measured, roofline
from cdmpp.report.report import Column, Interval, Report, Table, Total
from cdmpp.report.timeline import spans_of
from cdmpp.units import RATE, SHARE

_TOP = 12
"""Bars of a chart."""
MOST = 1000
"""Kernels in a plot of points, those with the most total time."""
NOTES = {
    "latency": "One run of the network, all calls replayed in the order in which the network needs them. In 8 of 10 "
    "cases the true time should lie in an interval of 80 %.",
    "overhead": "Launches and the framework.",
    "roofline": "A kernel far below the lines leaves much of the device unused: a better schedule may help. One above "
    "the slope found its data in a cache, or fuses work that is counted but not done.",
}


def network_report(prediction: NetworkPrediction) -> Report:
    """Report kernels as rows, most total time first."""
    rows = prediction.table()
    return Report(
        title=f"{prediction.network} on {prediction.device}, batch {prediction.batch}, model {prediction.model}, "
        f"schedule {prediction.schedule}",
        answer=prediction.to_dict(),
        totals=_totals(prediction),
        tables=(kernel_table(prediction),),
        warnings=prediction.warnings,
        timeline=spans_of(prediction.timeline),
        charts=(*_bars(prediction, rows), *_plots(prediction.device, rows[:MOST])),
        notes=NOTES,
    )


def kernel_table(prediction: NetworkPrediction) -> Table:
    """Make a row for each kernel."""
    level = prediction.shown_level
    bound = "" if level is None else f"{100 * level:g} % "
    columns = (
        Column("kernel", "kernel", kind="name"),
        Column("op_class", "op class", kind="text", rank=3),
        Column("count", "calls", is_sum=True, meaning="Calls in one run."),
        Column("total_s", "total", "s", is_sum=True, meaning="One call and its cold extra, times the calls."),
        Column("share", "share", SHARE, is_sum=True, meaning="Share of the time of all calls and the overhead."),
        Column("latency_s", "one call", "s", rank=2, meaning="One call by itself, its data in cache."),
        Column("interval_low_s", f"{bound}low", "s", is_optional=True, rank=1),
        Column("interval_high_s", f"{bound}high", "s", is_optional=True, rank=1),
        Column("cold_s", "cold extra", "s", is_optional=True, rank=6,
               meaning="What a call takes longer because other kernels have used the cache meanwhile."),
        Column("flops", "work", "FLOP", rank=8, meaning="Operations of one call; a multiply-add is two."),
        Column("io_bytes", "data", "B", rank=9, meaning="Bytes of inputs, weights and outputs of one call, each once."),
        Column("flops_per_s", "rate", "FLOP/s", rank=7),
        Column("bound", "bound by", kind="text", is_optional=True, rank=5,
               meaning="What the published peaks of the device make the limit."),
        Column("measured_s", "measured", "s", is_optional=True, meaning="One call, timed by itself on the device."),
        Column("flags", "flags", kind="text", is_optional=True, rank=4),
    )  # fmt: skip
    return Table("Kernels, most time first", columns, prediction.table())


def latency_parts(prediction: NetworkPrediction) -> dict[str, float]:
    """Return seconds that make the latency; ``side by side`` is negative: what overlaps is no loss of time."""
    parts = {"kernels": prediction.kernels_s, "cold caches": prediction.cold_s, "overhead": prediction.overhead_s}
    rest = prediction.latency_s - prediction.work_s
    if abs(rest) > 5e-3 * prediction.latency_s:
        parts["side by side" if rest < 0 else "waiting"] = rest
    return parts


def by_class(prediction: NetworkPrediction) -> dict[str, float]:
    """Sum seconds of all calls by operator class, most first."""
    totals: dict[str, float] = {}
    for kernel in prediction.kernels:
        totals[kernel.op_class or "other"] = totals.get(kernel.op_class or "other", 0.0) + kernel.total_s
    return dict(sorted(totals.items(), key=lambda entry: -entry[1]))


def peaks(device: str) -> tuple[float | None, float | None, float | None]:
    """Return fp32 FLOP/s, memory B/s (of CPUs that of a core), fastest fp16 FLOP/s; None where none is described."""
    try:
        described = devices.get(device)
    except UnknownDeviceError:
        return None, None, None
    spec = described.spec
    gbps = spec["core_gbps"] if described.kind == "cpu" else spec["bandwidth_gbps"]
    narrow = max((rate for rate in (spec["fp16_tflops"], spec["fp16_matrix_tflops"]) if rate), default=None)
    tflops = spec["fp32_tflops"]
    return tflops and 1e12 * tflops, gbps and 1e9 * gbps, narrow and 1e12 * narrow


def interval_of(bounds: Bounds) -> Interval | None:
    """Return the interval of the level that is shown; None without."""
    level = best_level(bounds)
    return None if level is None else (level, *bounds[level])


def _totals(prediction: NetworkPrediction) -> tuple[Total, ...]:
    whole_s, calls = prediction.work_s, sum(kernel.count for kernel in prediction.kernels)
    made = tuple(
        Total(name, seconds, "s", share=seconds / whole_s if whole_s and seconds >= 0 else None)
        for name, seconds in latency_parts(prediction).items()
    )
    held = {"weights": prediction.weight_bytes, "inputs": prediction.input_bytes,
            "results at a time": prediction.activation_bytes}  # fmt: skip
    told = prediction.intervals_from.rstrip(".")
    source = f"from {told}" if prediction.intervals else f"none: {told.removeprefix('there are none: ')}"
    once = f"; {prediction.folded} more run once, when it is deployed" if prediction.folded else ""
    return (
        Total("latency", prediction.latency_s, "s", 4, interval=interval_of(prediction.intervals)),
        *_measured(prediction),
        Total("interval", source),
        _throughput(prediction),
        *_generation(prediction),
        Total("time", parts=made),
        Total("calls", calls, note=f"of {len(prediction.kernels)} kernels{once}"),
        Total("memory", prediction.peak_bytes, "B", parts=tuple(Total(name, size, "B") for name, size in held.items())),
    )


def _generation(prediction: NetworkPrediction) -> tuple[Total, ...]:
    if prediction.tokens_per_s is None:
        return ()
    rate = Total("generation", prediction.tokens_per_s, "tokens/s", 4, note=f"{prediction.tokens:,} tokens in a run")
    return rate, Total("cache", prediction.cache_bytes, "B", note="keys and values, after the run")


def _measured(prediction: NetworkPrediction) -> tuple[Total, ...]:
    if not prediction.measured_s:
        return ()
    off = 100 * (prediction.latency_s / prediction.measured_s - 1)
    note = f"predicted is {abs(off):.1f} % {'more' if off >= 0 else 'less'}"
    return (Total("measured", prediction.measured_s, "s", 4, note=note),)


def _throughput(prediction: NetworkPrediction) -> Total:
    interval = interval_of(prediction.intervals)
    if interval is not None:
        level, low_s, high_s = interval
        interval = (level, prediction.batch / high_s, prediction.batch / low_s) if low_s > 0 else None
    per_s = prediction.batch / prediction.latency_s if prediction.latency_s > 0 else 0.0
    return Total("throughput", per_s, RATE, interval=interval)


def _bars(prediction: NetworkPrediction, rows: Sequence[dict[str, Any]]) -> tuple[Chart, ...]:
    whole = prediction.work_s or 1.0
    parts = {name: seconds for name, seconds in latency_parts(prediction).items() if seconds >= 0}
    classes = list(by_class(prediction).items())[:_TOP]
    title = f"The {_TOP} kernels with most time" if len(rows) > _TOP else "Time by kernel"
    return (
        Bars("Time by part", tuple(Bar(name, seconds, seconds / whole) for name, seconds in parts.items())),
        Bars("Time by op class", tuple(Bar(name, seconds, seconds / whole, name) for name, seconds in classes)),
        Bars(title, tuple(Bar(row["kernel"], row["total_s"], row["share"], row["op_class"]) for row in rows[:_TOP])),
    )


def _plots(device: str, rows: Sequence[dict[str, Any]]) -> tuple[Chart, ...]:
    found: list[Chart] = []
    if drawn := [row for row in rows if row["flops"] > 0 and row["io_bytes"] > 0 and row["flops_per_s"]]:
        peak, bandwidth, narrow = peaks(device)
        notes = ["A circle for each kernel, its area by total time."]
        if left_out := len(rows) - len(drawn):
            notes.append(f"{left_out} kernels without arithmetic are not shown.")
        if missing := [name for name, value in (("peak", peak), ("bandwidth", bandwidth)) if value is None]:
            notes.append(f"The description of {device} has no {' and no '.join(missing)}.")
        found.append(Plot("Roofline", roofline(drawn, peak, bandwidth, narrow), " ".join(notes)))
    if timed := [row for row in rows if row["measured_s"] and row["latency_s"] > 0]:
        error = sum(abs(row["latency_s"] / row["measured_s"] - 1) for row in timed) / len(timed)
        note = f"{len(timed)} kernels, one call each; the mean error is {100 * error:.1f} %. Dashed: 20 % off."
        found.append(Plot("Predicted and measured", against_measured(timed), note))
    return tuple(found)
