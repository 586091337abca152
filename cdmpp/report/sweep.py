"""The report on a network at many sizes: a row a point, curves over the axis that has most sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cdmpp.network.sweep import Sweep
from cdmpp.report.charts import Plot, Point, points
from cdmpp.report.picture import write_points
from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.units import RATE, quantity

_MOST_WARNINGS = 20
_NOTE = "A point is an answer; both axes are logarithmic."


def sweep_report(found: Sweep) -> Report:
    """Report points as rows, in the order of the sizes."""
    rows, rate = [point.row() for point in found.points], _rate(found)
    best = max(rows, key=lambda row: row[rate] or 0.0)
    across = _across(found)
    curves = [("Time", "latency_s", "s"), ("Throughput", rate, RATE)]
    warnings = dict.fromkeys(sentence for point in found.points for sentence in point.warnings)
    count = f"{len(rows)} points{_left_out(found)}"
    at = ", ".join(f"{name} {best[name]:,}" for name in found.axes)
    return Report(
        title=f"{found.network} on {found.device}, {count}, model {found.model}, schedule {found.schedule}",
        answer=found.to_dict(),
        totals=(
            Total("most a second", best[rate], RATE, note=f"{_what(found)}, at {at}"),
            Total("shortest", min(row["latency_s"] for row in rows), "s"),
            Total("longest", max(row["latency_s"] for row in rows), "s"),
        ),
        tables=(_table(found),),
        warnings=(*found.notes, *_told(tuple(warnings))),
        charts=tuple(
            Plot(title, points(title, _series(found, key), (across, ""), (title.lower(), unit), True), _NOTE)
            for title, key, unit in curves
        ),
    )


def swept_devices_report(found: Sequence[Sweep]) -> Report:
    """Report sweeps of one network on several devices: a row a device and point, the devices as they were given."""
    rows = [{"device": sweep.device, **row} for sweep in found for row in sweep.table()]
    rates = [_rate(sweep) for sweep in found]
    best = {
        sweep.device: max(row[rate] or 0.0 for row in sweep.table()) for sweep, rate in zip(found, rates, strict=True)
    }
    columns = {column.key: column for sweep in found for column in _table(sweep).columns}
    warnings = dict.fromkeys(
        sentence for sweep in found for sentence in (*sweep.notes, *(w for p in sweep.points for w in p.warnings))
    )
    return Report(
        title=f"{found[0].network} on {len(found)} devices, {len(rows)} points",
        answer={"network": found[0].network, "devices": [sweep.to_dict() for sweep in found]},
        totals=tuple(
            Total(f"most a second on {sweep.device}", best[sweep.device], RATE, note=_what(sweep)) for sweep in found
        ),
        tables=(Table("Points", (Column("device", "device", kind="text"), *columns.values()), rows),),
        warnings=_told(tuple(warnings)),
    )


def _left_out(found: Sweep) -> str:
    return f" and {len(found.refused)} that it cannot have" if found.refused else ""


def write_sweep(found: Sweep, path: Path) -> None:
    """Write the curves of what is done in a second as PNG; ``CdmppError`` without matplotlib."""
    series, rate = _series(found, _rate(found)), f"{_what(found)} a second"
    write_points(path, f"{found.network} on {found.device}", series, _across(found), rate, ())


def _table(found: Sweep) -> Table:
    level = next((row["interval_level"] for row in found.table() if row["interval_level"]), None)
    bound = "" if level is None else f"{100 * level:g} % interval, "
    columns = (
        *(Column(name, name, digits=10) for name in found.axes),
        Column("latency_s", "latency", "s", digits=4),
        Column("interval_low_s", f"{bound}low", "s", is_optional=True, rank=1),
        Column("interval_high_s", f"{bound}high", "s", is_optional=True, rank=1),
        Column("forward_s", "forward", "s", is_optional=True, rank=2),
        Column("backward_s", "backward", "s", is_optional=True, rank=2),
        Column("update_s", "update", "s", is_optional=True, rank=2),
        Column("samples_per_s", "samples", RATE),
        Column("tokens_per_s", "tokens", RATE, is_optional=True),
        Column("peak_bytes", "memory", "B"),
        Column("refused", "refused", kind="text", is_optional=True),
    )
    return Table("Points", columns, found.table())


def _series(found: Sweep, key: str) -> dict[str, list[Point]]:
    """Sizes of the other axes -> points along the one that is drawn."""
    axis, series = _across(found), dict[str, list[Point]]()
    for row in found.table():
        if row[key]:
            label = ", ".join(f"{name} {row[name]:,}" for name in found.axes if name != axis) or found.network
            told = f"{axis} {row[axis]:,}: {quantity(row[key], 's' if key == 'latency_s' else RATE)}"
            series.setdefault(label, []).append(Point(max(row[axis], 1), row[key], told))
    return series


def _across(found: Sweep) -> str:
    """The axis with most sizes."""
    return max(found.axes, key=lambda name: len(found.axes[name]))


def _rate(found: Sweep) -> str:
    return "tokens_per_s" if all(point.tokens for point in found.points) else "samples_per_s"


def _what(found: Sweep) -> str:
    return "tokens" if _rate(found) == "tokens_per_s" else "samples"


def _told(warnings: tuple[str, ...]) -> tuple[str, ...]:
    if len(warnings) <= _MOST_WARNINGS:
        return warnings
    rest = len(warnings) - _MOST_WARNINGS
    return (*warnings[:_MOST_WARNINGS], f"{rest} more warnings of single points: --json has them at each point")
