"""Comparison: one network on several devices. A device without an answer keeps its place, with the reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.data.plots import save_plot
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, some
from cdmpp.network.prediction import NetworkPrediction
from cdmpp.network.runtime import predictor_of
from cdmpp.platform.files import plain, write_atomic
from cdmpp.report.report import best_level, frame_of
from cdmpp.report.summary import rate
from cdmpp.units import quantity, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BY_DATASHEET = re.compile(r"never saw|datasheet alone|by its (description|datasheet)")
"""In a warning: no program of the model's training ran on the device."""


@dataclass(frozen=True)
class Answer:
    """Of one device."""

    device: str
    prediction: NetworkPrediction | None
    reason: str = ""
    """Why there is no prediction."""

    @property
    def by_datasheet(self) -> bool:
        """Whether the model knows the device by its description alone."""
        return self.prediction is not None and any(map(_BY_DATASHEET.search, self.prediction.warnings))

    def row(self) -> dict[str, Any]:
        """Its numbers, units in the names; None where there are none."""
        found = self.prediction
        latency = found.latency_s if found else None
        level = best_level(found.intervals) if found else None
        low, high = found.intervals[level] if found and level is not None else (None, None)
        batch = found.batch if found else 0
        bounds = {"interval_level": level, "interval_low_s": low, "interval_high_s": high}
        rates = {"throughput_per_s": latency, "throughput_low_per_s": high, "throughput_high_per_s": low}
        others = ("batch", "model", "schedule", "peak_bytes", "measured_s")
        return {
            "device": self.device,
            "latency_s": latency,
            "by_datasheet": self.by_datasheet,
            **bounds,
            **{name: batch / seconds if seconds else None for name, seconds in rates.items()},
            **{name: getattr(found, name) if found else None for name in others},
            "warnings": list(found.warnings) if found else [],
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Comparison:
    """Answers of the devices in the order in which they were asked for; at least one has a prediction."""

    answers: tuple[Answer, ...]

    @property
    def network(self) -> str:
        """Its name."""
        return next(answer.prediction.network for answer in self.answers if answer.prediction)

    def table(self) -> list[dict[str, Any]]:
        """A row a device, fastest first, those without an answer last; units are in the names of the keys."""
        rows = [answer.row() for answer in self.answers]
        return sorted(rows, key=lambda row: (row["latency_s"] is None, row["latency_s"] or 0.0))

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as JSON takes them."""
        return plain({"network": self.network, "devices": self.table()})

    def to_frame(self) -> Any:
        """``table`` as a pandas DataFrame; ``CdmppError`` where pandas is not installed."""
        return frame_of(self.table())

    def save_html(self, path: str | Path) -> Path:
        """Write a page with charts, one file that needs no network; ``CdmppError`` where that cannot be."""
        from cdmpp.report.comparison_page import html_page

        page, path = html_page(self), Path(path)
        write_atomic(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))
        return path

    def save_plot(self, path: str | Path) -> Path:
        """Write a PNG; ``CdmppError`` where that cannot be, or without matplotlib."""
        rows = [row for row in self.table() if row["latency_s"]]
        title = f"{visible(self.network).replace('$', chr(92) + '$')}: predicted latency of a run"
        return save_plot(Path(path), (7.6, 1.6 + 0.45 * len(rows)), title, partial(_draw, rows=rows))

    def _repr_html_(self) -> str:
        from cdmpp.report.comparison_page import table_html

        return table_html(self)


def compare(given: Any, example_inputs: Any = None, *, devices: Sequence[str | Device], **options: Any) -> Comparison:
    """Predict one network on several devices.

    Args:
        given: a network, as ``predict_network`` takes it; ``example_inputs`` as well.
        devices: names, or devices described in Python; one that is there twice is asked once.
        options: of ``predict_network``, all but ``device``.

    Raises:
        CdmppError: none of the devices has an answer. Where one has, the others keep their reason.
    """
    predict = predictor_of(options.pop("runtime", "tvm"))
    given_devices = [devices] if isinstance(devices, str) else devices
    asked = {device if isinstance(device, str) else device.name: device for device in given_devices}
    if not asked:
        raise CdmppError("no device to compare on: give the names of some, `cdmpp devices` lists them")
    answers = []
    for name, device in asked.items():
        try:
            found = predict(given, example_inputs, device=device, **options)
            answers.append(Answer(name, found))
        except CdmppError as error:
            answers.append(Answer(name, None, str(error)))
    if not any(answer.prediction for answer in answers):
        reasons = {answer.reason for answer in answers}
        raise CdmppError(
            reasons.pop()
            if len(reasons) == 1
            else f"no device has an answer. {some([f'{answer.device}: {answer.reason}' for answer in answers])}"
        )
    return Comparison(tuple(answers))


def _draw(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Latency with its interval and throughput of each device; hollow where a datasheet is all that is known."""
    for place, row in enumerate(rows):
        middle = 1e3 * row["latency_s"]
        if row["interval_low_s"] is not None:
            ends = [1e3 * row["interval_low_s"], 1e3 * row["interval_high_s"]]
            axes.plot(ends, [place, place], color="#1f6fb4", linewidth=3, alpha=0.35, solid_capstyle="round")
        axes.plot(middle, place, "o", color="#1f6fb4", markerfacecolor="white" if row["by_datasheet"] else "#1f6fb4")
        note = f"{quantity(row['latency_s'], 's')}, {rate(row['batch'], row['latency_s'])}"
        axes.annotate(note, (middle, place), (0, 7), textcoords="offset points", fontsize=8, ha="center")
        if row["measured_s"]:
            axes.plot(1e3 * row["measured_s"], place, "x", color="#e07b1a")
    level = next((row["interval_level"] for row in rows if row["interval_level"]), None)
    notes = [f"line: {100 * level:g} % interval"] if level else []
    notes += ["hollow: known by its datasheet alone"] if any(row["by_datasheet"] for row in rows) else []
    notes += ["cross: measured"] if any(row["measured_s"] for row in rows) else []
    axes.set_yticks(range(len(rows)), [row["device"] for row in rows])
    axes.set(xscale="log", ylim=(len(rows) - 0.4, -0.7), xlabel="\n".join(["latency (ms)", ", ".join(notes)]).strip())
    axes.margins(x=0.25)
    axes.grid(axis="x", alpha=0.3)
    _plain(axes)


def _plain(axes: Axes) -> None:
    """Numbers instead of powers of ten, some of them also within a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
