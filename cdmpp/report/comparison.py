"""The report on a network on several devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.network.comparison import Comparison
from cdmpp.report.charts import Dot, Dots
from cdmpp.report.report import Column, Report, Table
from cdmpp.units import RATE

BY_DATASHEET = "datasheet only"
_NOTE = """A dot is the prediction, the bar behind it the interval, a cross what was measured. A hollow dot: the model
learned from no program of that device and goes by its datasheet only, so expect larger errors than the interval of
another device suggests. The axis is logarithmic."""


def comparison_report(found: Comparison) -> Report:
    """Report devices as rows, fastest first, those without an answer last."""
    rows = found.table()
    answered = [row for row in rows if row["latency_s"]]
    batches = ", ".join(str(batch) for batch in sorted({row["batch"] for row in answered}))
    return Report(
        title=f"{found.network}, batch {batches}: {len(answered)} of {len(rows)} devices have an answer",
        answer=found.to_dict(),
        tables=(_table(rows),),
        warnings=tuple(
            f"{row['device']}: {sentence}"
            for row in rows
            for sentence in filter(None, (row["reason"], *row["warnings"]))
        ),
        charts=(
            _dots("Latency", answered, "latency_s", ("interval_low_s", "interval_high_s"), "measured_s", "s"),
            _dots(
                "Throughput", answered, "throughput_per_s", ("throughput_low_per_s", "throughput_high_per_s"), "", RATE
            ),
        ),
    )


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    level = next((row["interval_level"] for row in rows if row["interval_level"]), None)
    bound = "" if level is None else f"{100 * level:g} % interval, "
    columns = (
        Column("device", "device", kind="text"),
        Column("latency_s", "latency", "s", digits=4),
        Column("interval_low_s", f"{bound}low", "s", is_optional=True),
        Column("interval_high_s", f"{bound}high", "s", is_optional=True),
        Column("throughput_per_s", "throughput", RATE),
        Column("peak_bytes", "memory", "B"),
        Column("measured_s", "measured", "s", digits=4, is_optional=True),
        Column("model", "model", kind="text"),
        Column("known_by", "known by", kind="text"),
        Column("reason", "no answer because", kind="text", is_optional=True),
    )
    known = {True: BY_DATASHEET, False: "its programs"}
    return Table("Devices, fastest first", columns, [
        {**row, "known_by": known[row["by_datasheet"]] if row["latency_s"] else None} for row in rows
    ])  # fmt: skip


def _dots(
    title: str, rows: Sequence[dict[str, Any]], key: str, bounds: tuple[str, str], measured: str, unit: str
) -> Dots:
    dots = (
        Dot(row["device"], row[key], row[bounds[0]], row[bounds[1]], row.get(measured), row["by_datasheet"],
            _title(row["device"]))
        for row in rows
    )  # fmt: skip
    return Dots(title, tuple(dots), unit, " ".join(_NOTE.split()))


def _title(device: str) -> str:
    """The full title of a device; its name where it is not described."""
    try:
        return devices.get(device).title
    except CdmppError:
        return device
